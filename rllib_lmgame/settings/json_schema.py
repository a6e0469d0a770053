"""The settings as a JSON schema (draft 2020-12), for editors of YAML.

It covers each value alone: key, type, limits, choices. Rules between options are checked before a run.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from rllib_lmgame.settings.algorithms import AlgorithmEntry
from rllib_lmgame.settings.schedules import ScheduleOptions
from rllib_lmgame.settings.schema import REQUIRED, as_mapping, default_of, fields_of, group_in, tag_of
from rllib_lmgame.settings.sections.exploiters import ExploiterOptions
from rllib_lmgame.settings.sections.games import GameConfig
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions, PlayerOptions
from rllib_lmgame.settings.sections.league import LeagueOptions
from rllib_lmgame.settings.sections.rllib import WITHOUT_EFFECT, EvaluationOptions, RLlibOptions

Schema: TypeAlias = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
SEARCH_SPACE, SCHEDULE = {"$ref": "#/$defs/search_space"}, {"$ref": "#/$defs/schedule"}

_TYPES: Mapping[Any, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", tuple: "array", dict: "object",
    type(None): "null",
}  # fmt: skip
_LIMITS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}

Inner = Mapping[tuple[type, str], Callable[[], Schema]]
"""What stands in options that Python knows as a mapping or list of anything: group and key -> schema."""


def of_type(hint: Any, bounds: Mapping[str, Any]) -> Schema:
    """The schema of a value by its annotation and limits."""
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return one_of(of_type(arm, bounds) for arm in arms)
    if origin is typing.Literal:
        return {"enum": list(arms)}
    kind = _TYPES.get(origin or hint)
    if kind is None:
        return {}
    schema: Schema = {"type": kind}
    if kind == "string" and bounds.get("choices"):
        return {"enum": list(bounds["choices"])}
    if kind in ("integer", "number"):
        schema |= {name: bounds[limit] for limit, name in _LIMITS.items() if bounds.get(limit) is not None}
    if kind == "array" and arms:
        schema["items"] = of_type(arms[0], {})
        if origin is tuple and Ellipsis not in arms:
            schema |= {"minItems": len(arms), "maxItems": len(arms)}
    if kind == "object" and len(arms) == 2 and arms[1] is not Any:
        schema["additionalProperties"] = of_type(arms[1], {})
    return schema


def one_of(schemas: Iterable[Schema]) -> Schema:
    """A value that is any of these."""
    distinct: list[Schema] = []
    for schema in schemas:
        if schema not in distinct:
            distinct.append(schema)
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def of_group(group: type, inner: Inner | None = None, *, search: bool = True) -> Schema:
    """The schema of an option group; ``search`` allows search spaces as values."""
    hints, properties, open_to_others = typing.get_type_hints(group), {}, False
    for key, field in fields_of(group).items():
        if field.metadata.get("arguments"):
            open_to_others = True
        else:
            properties[key] = _of_field(group, key, field, hints[field.name], inner or {}, search)
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": open_to_others}
    missing = [key for key, field in fields_of(group).items() if default_of(field) is REQUIRED]
    return schema | ({"required": missing} if missing else {})


def _of_field(group: type, key: str, field: dataclasses.Field[Any], hint: Any, inner: Inner, search: bool) -> Schema:
    kind = group_in(hint)
    if kind is not None:
        forms = [of_group(kind, inner, search=search)]
        if name := tag_of(kind):
            forms.append({key: value for key, value in forms[0]["properties"][name].items() if key != "default"})
        if type(None) in typing.get_args(hint):
            forms.append({"type": "null"})
    else:
        forms = [inner[group, key]()] if (group, key) in inner else []
        forms += [of_type(hint, field.metadata)] if not forms or not isinstance(default_of(field), dict) else []
    if field.metadata.get("schedulable"):
        forms.append(SCHEDULE)
    if search:
        forms.append(SEARCH_SPACE)
    of = field.metadata.get("of")
    doc = (f"Of {' and '.join(of)}. " if of else "") + str(field.metadata.get("doc", ""))
    default = default_of(field)
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        default = as_mapping(default)
    said = {} if default is REQUIRED else {"default": list(default) if isinstance(default, tuple) else default}
    return {"description": doc, **one_of(forms), **said}


def configs(
    entries: Iterable[AlgorithmEntry], others: Iterable[str], search_keys: Iterable[str], more: Inner
) -> Schema:
    """Definitions of a schema: the ``config`` of each algorithm, and what they refer to.

    Args:
        others: RLlib's undeclared keys; they take any value.
        search_keys: Names of search spaces.
        more: See :data:`Inner`; beside this module's own.
    """
    inner = {**_INNER, **more}
    listed = list(entries)
    shared: Schema = {
        **of_group(RLlibOptions, inner)["properties"],
        "deepspeed": {"description": "DeepSpeed's own configuration.", "type": ["object", "null"]},
        "policies": _policies(inner),
        "policy_mapping_fn": {"description": "Who takes which seat.", "type": ["string", "object"]},
        "games": _games(),
    }
    taken: Schema = {f"^({'|'.join(key for key in others if key not in {*shared, *WITHOUT_EFFECT})})$": {}}
    evaluation = {**of_group(EvaluationOptions, inner), "patternProperties": taken}
    sections = {name: section.group for entry in listed for name, section in entry.sections.items()}
    shared |= {"evaluation_config": one_of([evaluation, {"type": "null"}])}
    shared |= {
        name: one_of([of_group(group, inner), {"type": "null"}, SEARCH_SPACE]) for name, group in sections.items()
    }
    return {
        "schedule": {"description": "A number that changes during the run.", **of_group(ScheduleOptions)},
        "search_space": {
            "description": "A search space: one key that names a distribution.",
            "type": "object",
            "properties": {key: {} for key in search_keys},
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
            for entry in listed
        },
    }


def _policies(inner: Inner) -> Schema:
    player = one_of([of_group(PlayerOptions, inner), {"type": "null"}])
    return one_of(
        [
            {"type": "array", "items": {"type": "string"}},
            {"type": "object", "additionalProperties": player},
            SEARCH_SPACE,
        ]
    )


def _games() -> Schema:
    game = one_of([{"type": "string"}, of_group(GameConfig, _INNER), SEARCH_SPACE])
    return one_of([{"type": "array", "items": game, "minItems": 1}, SEARCH_SPACE])


_INNER: Inner = {
    (EvaluationOptions, "games"): lambda: _games(),
    (PlayerOptions, "language_model"): partial(of_group, LanguageModelOptions),
    (LeagueOptions, "exploiters"): lambda: {"type": "object", "additionalProperties": of_group(ExploiterOptions)},
}
