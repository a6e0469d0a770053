"""The JSON schema (draft 2020-12) of experiment files, for editors of YAML and for the reference page.

It covers each value alone: key, type, limits, choices, and which options a type of a group has. Rules between options
are checked before a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from rllib_lmgame.base.group import (
    LISTED,
    NAMED,
    REQUIRED,
    Holds,
    Option,
    as_data,
    declared,
    is_open,
    tag_of,
    value_schema,
)
from rllib_lmgame.base.registry import Registry
from rllib_lmgame.base.schedule import ScheduleOptions
from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.config.rllib import TAKEN, OtherOptions, RLlibOptions
from rllib_lmgame.experiments.search.spaces import SEARCH_KEYS
from rllib_lmgame.experiments.spec import MAPPINGS, ExperimentOptions

Schema: TypeAlias = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
SEARCH_SPACE, SCHEDULE = {"$ref": "#/$defs/search_space"}, {"$ref": "#/$defs/schedule"}
NULL: Schema = {"type": "null"}


def of_type(hint: Any, says: Mapping[str, Any], search: bool = True) -> Schema:
    """The schema of a value by its annotation and limits; ``search`` allows search spaces in it."""
    schema = value_schema(hint, says)
    forms = schema.get("anyOf", [schema])
    if says.get("holds"):
        forms = [
            _held(says["holds"], form["type"]) if form.get("type") in ("array", "object") else form for form in forms
        ]
    elif search:
        forms = [_searchable(form) for form in forms]
    return one_of(forms)


def _searchable(schema: Schema) -> Schema:
    """A list may have search spaces in it, at every depth."""
    if isinstance(inner := schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = _searchable(inner)
    if isinstance(items := schema.get("items"), dict):
        schema["items"] = one_of([_searchable(items), SEARCH_SPACE])
    if "prefixItems" in schema:
        schema["prefixItems"] = [one_of([each, SEARCH_SPACE]) for each in schema["prefixItems"]]
    return schema


def one_of(schemas: Iterable[Schema]) -> Schema:
    """A value that is any of these."""
    distinct: list[Schema] = []
    for schema in schemas:
        for form in schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]:
            if form not in distinct:
                distinct.append(form)
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _held(holds: Holds, kind: str) -> Schema:
    if kind == "array":
        items = [of_group(holds.group), SEARCH_SPACE] if holds.form == LISTED else []
        return {"type": "array", "items": one_of([{"type": "string"}, *items]), "minItems": 1}
    if holds.form == NAMED:
        return {"type": "object", "additionalProperties": one_of([of_group(holds.group), NULL, SEARCH_SPACE])}
    return of_group(holds.group)


def of_group(group: type, *, search: bool = True) -> Schema:
    """The schema of an option group; ``search`` allows search spaces as values."""
    options = declared(group)
    schema: Schema = {
        "type": "object",
        "properties": {key: _of_option(each, search) for key, each in options.items()},
        "additionalProperties": is_open(group),
    }
    if missing := [key for key, each in options.items() if each.default is REQUIRED]:
        schema["required"] = missing
    return schema


def _of_option(each: Option, search: bool) -> Schema:
    if each.group is not None:
        forms = [of_group(each.group, search=search)]
        if name := tag_of(each.group):
            forms.append({key: value for key, value in forms[0]["properties"][name].items() if key != "default"})
        if each.nullable:
            forms.append(NULL)
    elif each.parts is not None:
        forms = [{"type": "string"}, *_parts(each.parts, search), *([NULL] if each.nullable else [])]
    else:
        forms = [of_type(each.hint, each.says, search)]
    if each.scheduled:
        forms.append(SCHEDULE)
    if search:
        forms.append(SEARCH_SPACE)
    doc, default = str(each.says.get("doc", "")), each.default
    if each.parts is not None:
        doc += f" One of {each.parts.listed()}."
    said = {} if default is REQUIRED else {"default": as_data(default, given_only=False)}
    return {"description": doc, **one_of(forms), **said}


def _parts(parts: Registry, search: bool) -> Iterator[Schema]:
    """Options of each part; of somebody else's, and where the type is searched, any."""
    first, *others = (of_group(group, search=search) for group in parts.classes)
    for schema in (first, *others):
        kind = schema["properties"]["type"]
        schema["properties"]["type"] = {"description": kind["description"], "const": kind["default"]}
        yield schema if schema is first else schema | {"required": ["type", *schema.get("required", ())]}
    for kind in ({"type": "string", "pattern": ":"}, *([SEARCH_SPACE] if search else [])):
        yield {"type": "object", "properties": {"type": kind}, "required": ["type"]}


def file_schema() -> Schema:
    """The schema of a file: experiments by name.

    Configurations of algorithms that are not this package's may be any mapping.
    """
    experiment = of_group(ExperimentOptions, search=False)
    for key in MAPPINGS:
        experiment["properties"][key]["type"] = ["object", "null"]
    by_run: list[dict[str, Any]] = [
        {
            "if": {"properties": {"run": {"const": name}}, "required": ["run"]},
            "then": {"properties": {"config": one_of([{"$ref": f"#/$defs/{name}"}, NULL])}},
        }
        for name in OWN
    ]
    return {
        "$schema": DRAFT,
        "title": "rllib-lmgame: experiments by name",
        "type": "object",
        "additionalProperties": {**experiment, "required": ["run"], "allOf": by_run},
        "$defs": _configs(),
    }


def _configs() -> Schema:
    """The ``config`` of each algorithm, and what they refer to. RLlib's undeclared keys take any value."""
    shared: Schema = {**of_group(RLlibOptions)["properties"], **of_group(OtherOptions)["properties"]}
    taken: Schema = {f"^({'|'.join(sorted(TAKEN))}|callbacks_on_.*)$": {}}
    shared["evaluation_config"]["anyOf"].append(NULL)
    sections = {name: group for entry in OWN.values() for name, group in entry.groups.items()}
    shared |= {name: one_of([of_group(group), NULL, SEARCH_SPACE]) for name, group in sections.items()}
    return {
        "schedule": {"description": "A number that changes during the run.", **of_group(ScheduleOptions)},
        "search_space": {
            "description": "A search space: one key that names a distribution.",
            "type": "object",
            "properties": {key: {} for key in SEARCH_KEYS},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
        "key": shared,
        **{
            entry.name: {
                "type": "object",
                "properties": {
                    key: {"$ref": f"#/$defs/key/{key}"}
                    for key in shared
                    if key not in sections or key in entry.sections
                },
                "patternProperties": taken,
                "additionalProperties": False,
            }
            for entry in OWN.values()
        },
    }
