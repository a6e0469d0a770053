"""Option groups: frozen pydantic models whose options have documentation and limits.

A group lists its options with :func:`option`; :func:`build` makes one from a mapping (YAML, keyword arguments). An
option may be another group::

    kl: KLOptions | None = option(None, "...")            # kl: {as: reward}, or null

A group with a :func:`tag` may be given as the tag's value alone: ``kl: reward`` is ``kl: {as: reward}``. An option
that is one of several groups, by their ``type``, is annotated with the registry of them::

    policy_loss: Annotated[Any, POLICY_LOSSES] = option("clip", "...")     # policy_loss: {type: gspo, clip_low: 3.0e-4}

A group declared with ``extra="allow"`` also takes other keys: the arguments of a plug-in, in ``model_extra``.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import sys
import types
import typing
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from string import Formatter
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, core_schema

from rllib_lmgame.base.errors import ConfigError, did_you_mean, nearest
from rllib_lmgame.base.text import shown

T = TypeVar("T", bound="Group")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

LARGEST_WHOLE = 2**31 - 1
"""Default upper limit of whole numbers: many readers use 32 bits."""

LARGEST = 1e9
"""Default upper limit of other numbers: products of some stay within a float32, and waits within what clocks take."""

REQUIRED: Any = PydanticUndefined
"""Default of an option that has to be given."""

_SCHEDULED = "scheduled"
Scheduled = Annotated[V, _SCHEDULED]
"""The type of an option that a schedule may change: ``lr: Scheduled[float]``; it is read in every iteration."""

_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def _once(function: F) -> F:
    """``cache`` that keeps the function's type: mypy takes no type for hashable."""
    return cache(function)  # type: ignore[return-value]


class Holds(NamedTuple):
    """What a mapping or list of an option holds: a group's options, or several groups by name or in a list."""

    group: type
    form: str = ""

    def checked(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Values of some of a group's options. Raises: ConfigError: for keys that it does not have."""
        known = declared(self.group)
        if wrong := [unknown_key(key, known, "") for key in values if key not in known]:
            raise ConfigError.together(wrong)
        return values


NAMED, LISTED = "named", "listed"
"""Forms of :class:`Holds`: name -> group, and a list of groups, each of which may be its first option alone."""


class Limits(UserDict[str, Any]):
    """What :func:`option` was given; ``Annotated[int, limits(ge=1)]`` is checked likewise where others are called."""

    def __hash__(self) -> int:
        return id(self)

    def __call__(self, schema: Any) -> None:
        """Pydantic asks what this adds to a JSON schema: nothing."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return _limited(handler(source), self)


def limits(**says: Any) -> Limits:
    """Limits of a value, as pydantic calls them (``ge``, ``gt``, ``le``, ``lt``), or its ``choices``."""
    return Limits(says)


def option(
    default: Any,
    doc: str,
    *,
    choices: tuple[Any, ...] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    stranger: bool | Callable[[Any], bool] | None = None,
    path: bool = False,
    holds: Holds | None = None,
    is_tag: bool = False,
) -> Any:
    """A field with documentation and limits.

    Args:
        default: :data:`REQUIRED`: there is none.
        doc: One or two sentences for the reference.
        le, ge: Numbers have these limits even where there is no other: :data:`LARGEST`, :data:`LARGEST_WHOLE`.
        stranger: Whether a file of others may set it: always, never, or a test of values. ``None``: numbers, booleans
            and ``choices`` only.
        path: Whether it may name a file or directory (:func:`~rllib_lmgame.base.storage.with_absolute_paths`).
        holds: What a mapping or list holds.
        is_tag: See :func:`tag`.
    """
    return Field(default, json_schema_extra=Limits(locals(), bounded=True), description=doc)


def tag(default: str, doc: str, *, choices: tuple[str, ...] | None = None, stranger: Any = None) -> Any:
    """The field that says which type of a group it is; its value alone may stand for the group."""
    return option(default, doc, choices=choices, stranger=stranger, is_tag=True)


class Group(BaseModel):
    """A frozen group of options; a field that would be a word of Python, as ``in``, ends with ``_``."""

    model_config = ConfigDict(
        **_STRICT,
        extra="forbid",
        frozen=True,
        defer_build=True,
        alias_generator=lambda name: name.rstrip("_"),
        validate_by_name=True,
        validate_by_alias=True,
        protected_namespaces=(),
    )

    def __init__(self, **values: Any) -> None:
        """Raises: ConfigError: for wrong options, as :func:`build`."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError.together(_errors(error, type(self), "", values)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # Pydantic need not call it for groups in groups.

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Numbers of somebody else's group without an upper limit may be any finite ones: that is not ours to know."""
        if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
            return
        for name in inspect.get_annotations(cls):
            info = cls.__pydantic_fields__.get(name)
            says = info and info.json_schema_extra
            if info is not None and isinstance(says, Limits) and says["le"] is None:
                info.json_schema_extra = Limits({**says, "bounded": False, "le": sys.float_info.max})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        schema = handler(source)
        inner = handler.resolve_ref_schema(schema)
        while inner["type"] != "model-fields":
            inner = inner["schema"]
        for name, field in inner["fields"].items():
            info = cls.__pydantic_fields__[name]
            says = info.json_schema_extra
            field["schema"] = _limited(field["schema"], says if isinstance(says, Limits) else {})
            if _SCHEDULED in info.metadata:
                _allow_schedule(field, Option(name.rstrip("_"), name, info, info.annotation, None))
            if _parts_of(info) is not None:
                field["schema"]["validate_default"] = True
        return schema

    @model_validator(mode="before")
    @classmethod
    def _type_alone(cls, values: Any) -> Any:
        kind = tag_of(cls) if isinstance(values, str) else None
        return {kind: values} if kind else values


@dataclasses.dataclass(frozen=True)
class Option:
    """A declared option, or a group of options in a group.

    Attributes:
        key: Its dotted key below the group that was asked.
        name: Of the field.
        hint: Its type.
        group: The group that it is, or ``None``.
        parts: The registry of groups of which it is one, by their ``type``.
    """

    key: str
    name: str
    field: FieldInfo
    hint: Any
    group: Any
    parts: Any = None

    def group_of(self, value: Any) -> Any:
        """The group that it is with such a value. Raises: ConfigError: if it names none."""
        return self.parts.class_of(value) if self.parts is not None and value is not None else self.group

    @property
    def says(self) -> Mapping[str, Any]:
        """Limits, documentation, trust ..., as given to :func:`option`."""
        extra = self.field.json_schema_extra
        return extra if isinstance(extra, Limits) else {}

    @property
    def default(self) -> Any:
        """A new one; :data:`REQUIRED` if there is none."""
        return self.field.get_default(call_default_factory=True, validated_data={})

    @property
    def holds(self) -> Holds | None:
        """What a mapping or list holds."""
        return self.says.get("holds")

    @property
    def scheduled(self) -> bool:
        """Whether a schedule may change it."""
        return _SCHEDULED in self.field.metadata

    @property
    def nullable(self) -> bool:
        """Whether it may be ``None``."""
        return type(None) in typing.get_args(self.hint)


def _parts_of(field: FieldInfo) -> Any:
    return next((each for each in field.metadata if hasattr(each, "class_of")), None)


def is_group(kind: Any) -> bool:
    """Whether it is a class of option groups."""
    return isinstance(kind, type) and issubclass(kind, Group)


@_once
def declared(group: type) -> dict[str, Option]:
    """A group's own options by their keys."""
    found = {}
    for name, field in group.__pydantic_fields__.items():  # type: ignore[attr-defined]
        key, hint = name.rstrip("_"), field.annotation
        inner = next(filter(is_group, arms_of(hint)), None)
        found[key] = Option(key, name, field, hint, inner, _parts_of(field))
    return found


@_once
def walk(group: type) -> tuple[Option, ...]:
    """All options of a group and of the groups in it, by their dotted keys; each group before what is in it."""
    found: list[Option] = []
    for each in declared(group).values():
        groups = each.parts.classes if each.parts else [each.group] if each.group else []
        below = {inner.key: inner for group in [*groups][::-1] for inner in walk(group)}
        found += [each, *(dataclasses.replace(inner, key=f"{each.key}.{key}") for key, inner in below.items())]
    return tuple(found)


@_once
def leaves(group: type) -> dict[str, Option]:
    """Those of :func:`walk` that are no groups."""
    return {each.key: each for each in walk(group) if each.group is None and each.parts is None}


@_once
def tag_of(group: type) -> str | None:
    """Name of the option that says which type of a group it is; ``None`` if it has no types."""
    return next((key for key, each in declared(group).items() if each.says.get("is_tag")), None)


def is_open(group: type) -> bool:
    """Whether a group takes other keys than its options: arguments of a plug-in."""
    return group.model_config.get("extra") == "allow"  # type: ignore[attr-defined]


def type_of(options: Any) -> str:
    """The type of a tagged group; "" of a group that has none."""
    kind = tag_of(type(options))
    return str(value_at(options, kind)) if kind else ""


def value_at(options: Any, key: str) -> Any:
    """The value of a dotted key; ``None`` where a group on the way is off, or is a part that has no such option."""
    for part in key.split("."):
        each = None if options is None else declared(type(options)).get(part)
        options = None if each is None else getattr(options, each.name)
    return options


def option_at(options: Any, key: str) -> Option | None:
    """The declaration of a dotted key; ``None`` where a group on the way is off, or is a part without it."""
    above, _, name = key.rpartition(".")
    group = value_at(options, above) if above else options
    return None if group is None else declared(type(group)).get(name)


def given(options: Group) -> frozenset[str]:
    """Keys of a group's own options that were written, or changed."""
    return frozenset(name.rstrip("_") for name in options.model_fields_set)


def values_of(options: Group) -> dict[str, Any]:
    """Field -> value of a group."""
    return {name: getattr(options, name) for name in type(options).model_fields}


def as_mapping(options: Group, given_only: bool = False) -> dict[str, Any]:
    """What :func:`build` makes an equal group of, groups in it included: plain data if its values are.

    Args:
        given_only: Leave out what was not given.
    """
    found: dict[str, Any] = copy.deepcopy(options.model_extra or {})
    plugin, own = ":" in type_of(options), dict[str, Any]()
    for key, each in declared(type(options)).items():
        value, said = getattr(options, each.name), each.name in options.model_fields_set
        if (said or not given_only) and not (plugin and value == each.default):
            own[key] = as_data(value, given_only or (each.scheduled and isinstance(value, Group)))
    return own | found


def as_data(value: Any, given_only: bool = True) -> Any:
    """A value with mappings in place of the groups in it, see :func:`as_mapping`."""
    if isinstance(value, Group):
        return as_mapping(value, given_only)
    if isinstance(value, Mapping):
        return {key: as_data(item) for key, item in value.items()}
    return [as_data(item) for item in value] if isinstance(value, list | tuple) else copy.deepcopy(value)


def with_changes(options: T, changes: Mapping[str, Any]) -> T:
    """A group with changed values at dotted keys, which are right; keys in groups that are off are skipped."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        head, _, rest = key.partition(".")
        if head not in declared(type(options)):
            continue
        name = declared(type(options))[head].name
        if not rest:
            own[name] = value
        elif getattr(options, name) is not None:
            inner.setdefault(name, {})[rest] = value
    own |= {name: with_changes(getattr(options, name), values) for name, values in inner.items()}
    return options.model_copy(update=own)


def build(cls: type[T], values: Any, path: str = "", base: T | None = None) -> T:
    """Build option group ``cls`` from ``values``, on top of ``base``.

    Args:
        values: A mapping, the type alone of a tagged group, or a built group.
        base: Used where ``values`` says nothing, except options of another type.

    Raises: ConfigError: for wrong keys, types, ranges or combinations, or missing options; all of them.
    """
    if isinstance(values, cls):
        return values
    over = values if base is None else _on_top(base, values)
    try:
        return cls.model_validate(over)
    except ValidationError as error:
        raise ConfigError.together(_errors(error, cls, path, over)) from None


def _on_top(base: Any, values: Any) -> Any:
    """What was given of ``base``, and above it ``values``, as a mapping; other values as they are."""
    kind = tag_of(type(base))
    if kind and isinstance(values, str):
        values = {kind: values}
    if not isinstance(values, Mapping):
        return values
    options = declared(type(base))
    kept = {key: value_at(base, key) for key in given(base) if key in options} | (base.model_extra or {})
    for key, value in values.items():
        inner = None if key not in options or options[key].scheduled else value_at(base, key)
        if isinstance(inner, Group):
            kind = value.get("type", type_of(inner)) if isinstance(value, Mapping) else value
            if not options[key].parts or kind == type_of(inner):
                value = _on_top(inner, value)
        kept[key] = value
    return kept


# -- values ---------------------------------------------------------------------------------------------------------


def check_value(value: Any, hint: Any, says: Mapping[str, Any], path: str) -> Any:
    """Check one value by annotation and limits; returns it, an ``int`` converted where a float is due."""
    if is_group(hint):
        return build(hint, value, path)
    try:
        return _adapter(hint, _bounds(says)).validate_python(value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise _wrong_value([(each["loc"], each) for each in found], hint, says, path, value) from None


def value_schema(hint: Any, says: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a value, by annotation and limits."""
    return _adapter(hint, _bounds({**says, "bounded": None})).json_schema()


_LIMITS = ("ge", "gt", "le", "lt")


def _bounds(says: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, says[key]) for key in ("choices", "bounded", *_LIMITS) if says.get(key) is not None)


@_once
def _adapter(hint: Any, says: tuple[tuple[str, Any], ...]) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[hint, Limits(says)], config=_STRICT)


def _limited(schema: Any, says: Mapping[str, Any]) -> Any:
    """Pydantic's schema with limits at the numbers in it, also in lists and mappings, and beside other types.

    A number that is whole is a whole number, and lists may be tuples; numbers in lists of lists have no limits.
    """
    kind = schema["type"]
    for part in ("schema", "items_schema", "values_schema", "choices") if kind not in ("model", "literal") else ():
        inner = schema.get(part)
        if isinstance(inner, list):
            schema[part] = [_limited(each, says) for each in inner]
        elif inner is not None:
            schema[part] = _limited(inner, {} if kind == "list" and inner["type"] == "list" else says)
    if kind in ("list", "tuple", "dict"):
        schema["strict"] = False
        if kind == "dict" and (holds := says.get("holds")) and not holds.form:
            schema = core_schema.no_info_after_validator_function(holds.checked, schema)
    elif fitting := [each for each in says.get("choices") or () if type(each).__name__ == kind]:
        schema = core_schema.literal_schema(fitting)
    elif kind in ("int", "float"):
        number, largest = (int, LARGEST_WHOLE) if kind == "int" else (float, LARGEST)
        schema |= {"ge": -largest, "le": largest} if says.get("bounded") else {}
        schema |= {key: number(says[key]) for key in _LIMITS if says.get(key) is not None}
    return schema if kind != "int" else core_schema.no_info_before_validator_function(_whole, schema)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_READERS: list[Callable[[Any, Option], Any]] = []


def reads_schedules(function: F) -> F:
    """Decorator of the function ``(value, option)`` that reads a schedule, or gives ``None`` for another value."""
    _READERS[:] = [function]
    return function


def _allow_schedule(field: Any, each: Option) -> None:
    """Let a schedule stand in the place of an option's value."""

    def read(value: Any, handler: Callable[[Any], Any]) -> Any:
        found = next((reader(value, each) for reader in _READERS), None)
        return handler(value) if found is None else found

    inner = field["schema"]
    place, key = (inner, "schema") if inner["type"] == "default" else (field, "schema")
    place[key] = core_schema.no_info_wrap_validator_function(read, place[key])


# -- errors -----------------------------------------------------------------------------------------------------------


def key_below(path: str, key: Any) -> str:
    """The dotted key of an option of the group at ``path``, or the place of an item (``[0]``) of the list there."""
    return f"{path}{key}" if str(key).startswith("[") else f"{path}.{key}" if path else str(key)


def unknown_key(key: Any, valid: Any, path: str) -> ConfigError:
    """The error for a key that does not exist, with the nearest one."""
    hint = did_you_mean(key, valid, "valid keys: " + ", ".join(sorted(valid)))
    return ConfigError(key_below(path, key), f"unknown key; {hint}")


def _errors(error: ValidationError, cls: type, path: str, values: Any) -> Iterator[ConfigError]:
    """What pydantic found, in our words: one error for each key."""
    of_leaf: dict[str, tuple[Option, Any, list[Any]]] = {}
    for found in error.errors(include_url=False):
        group: Any = cls
        key, value, loc, last, holder = path, values, list(found["loc"]), None, None
        while loc and group is not None:
            holder = last
            last = next((each for each in declared(group).values() if loc[0] in (each.key, each.name)), None)
            if last is None:
                break
            part = loc.pop(0)
            value = value.get(part) if isinstance(value, Mapping) else value
            key, group = key_below(key, last.key), last.group_of(value) if loc else last.group
        raised = found.get("ctx", {}).get("error")
        if isinstance(raised, ConfigError):
            for one in raised.each:
                own, whole = one.path.removeprefix("."), one.path.startswith((f"{path}.", "config."))
                yield one if whole else ConfigError(key_below(key, own) if own else key, one.message)
        elif found["type"] in ("extra_forbidden", "invalid_key"):
            yield _of_another_type(str(loc[0]), group, holder, key) or unknown_key(str(loc[0]), declared(group), key)
        elif found["type"] == "missing" and last is not None and not loc:
            yield ConfigError(key, f"is missing: {last.says['doc'].partition('. ')[0].rstrip('.')}")
        elif group is not None:
            meant = "; {} is all defaults" if value is True else ""
            wanted = f"must be {'a name or ' if tag_of(group) else ''}a mapping of options"
            yield ConfigError(key, f"{wanted}, got {describe(value)}{meant}")
        elif last is not None:
            of_leaf.setdefault(key, (last, value, []))[2].append((loc, found))
    for key, (each, value, errors) in of_leaf.items():
        yield _wrong_value(errors, each.hint, each.says, key, value)


def _of_another_type(key: str, group: Any, holder: Option | None, path: str) -> ConfigError | None:
    """The error for an option that parts of another type have, where ``holder`` holds the part."""
    others = [each for each in holder.parts.classes if key in declared(each)] if holder and holder.parts else []
    kind = tag_of(group)
    if not others or kind is None:
        return None
    own, *names = (declared(each)[kind].default for each in (group, *others))
    beside = f"{kind}: {own}" if own else f"this {kind}"
    return ConfigError(key_below(path, key), f"unknown key with {beside}; it belongs to {kind}: {' or '.join(names)}")


def _wrong_value(
    errors: Sequence[tuple[Sequence[Any], Any]], hint: Any, says: Mapping[str, Any], path: str, value: Any
) -> ConfigError:
    """The error for a value, from what pydantic says: of several types that it may have, one for each."""
    several = len(errors) > 1
    place, found = errors[0]
    parts = (
        ()
        if several or not found["msg"].startswith("Input")
        else [part for part in place if isinstance(part, int) or typing.get_origin(hint) is dict]
    )
    where = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    got = found["input"] if parts else value
    wanted = dict.fromkeys(
        re.sub("^Input should( be)? ", "", each["msg"]) if each["msg"].startswith("Input") else type_name(hint)
        for _, each in errors
    )
    choices = [*map(str, says.get("choices") or ())] if isinstance(got, str) else []
    longer = [choice for choice in choices if choice.startswith(f"{got}_")]
    matches = longer or [match for match in (nearest(got, choices),) if match]
    meant = f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""
    return ConfigError(where, f"must be {' or '.join(wanted)}, got {describe(got)}{meant}")


# -- words ------------------------------------------------------------------------------------------------------------


def describe(value: Any) -> str:
    """A value and its kind, as a user who wrote YAML would name it."""
    if value is None:
        return "nothing (null)"
    if type(value).__module__ == "ray.tune.search.sample":
        return "a search space; set it in the dictionary passed to `tune.Tuner`"
    kinds = {str: "text", bool: "truth value", int: "whole number", float: "number", list: "list", dict: "mapping"}
    kind = kinds.get(type(value))
    return f"the {kind} {shown(value)}" if kind else f"{type(value).__name__} {shown(value)}"


def arms_of(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def type_name(hint: Any) -> str:
    """An annotation as a reader of YAML knows it."""
    names = {
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        type(None): "null",
        dict: "a mapping",
        list: "a list",
        type: "a class",
        Callable: "a function",
    }
    if hint in names:
        return names[hint]
    if is_group(hint):
        return "a name or options" if tag_of(hint) else "options"
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(type_name, arms))
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arms)
    if origin in (list, tuple):
        return "a list of " + type_name((arms or (Any,))[0])
    if origin is dict:
        return "a mapping"
    return "any value" if hint is Any else getattr(hint, "__name__", str(hint))


# -- texts with placeholders ------------------------------------------------------------------------------------------


def check_placeholders(text: str, names: Collection[str], path: str) -> None:
    """Refuse all but ``{name}`` with one of ``names``, and doubled braces. Raises: ConfigError: names ``path``.

    ``str.format`` also obeys widths, conversions and attributes (``{name:999999999}``, ``{name!r}``, ``{name.x}``).
    """
    try:
        found = [rest for _, *rest in Formatter().parse(text)]
        right = all(name is None or (name in names and not form and not kind) for name, form, kind in found)
    except ValueError:
        right = False
    if not right:
        allowed = " and ".join(f"{{{name}}}" for name in names)
        raise ConfigError(path, f"{text!r} cannot be filled in; {allowed} is all it may hold, braces are written twice")
