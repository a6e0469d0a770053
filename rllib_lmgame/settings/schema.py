"""Typed, documented, range-checked option groups.

An option group is a frozen dataclass with fields made by :func:`option`. :func:`build` makes one from a mapping (YAML,
keyword arguments). The reference in ``docs/`` is generated from the fields. A field may be another group::

    kl: KLOptions | None = option(None, "...")            # kl: {in: reward}, or null

A group with a :func:`tag` has types, and an option can belong to some of them::

    class AggregationOptions:
        type: str = tag("token_mean", "...", choices=(...))
        length: int | None = option(None, "...", of=("constant_length",))

In YAML: ``aggregation: token_mean`` or ``aggregation: {type: constant_length, length: 512}``.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from rllib_lmgame.base.errors import ConfigError, did_you_mean, nearest
from rllib_lmgame.base.text import shown

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _once(function: F) -> F:
    """``cache`` that keeps the function's type: mypy takes no type for hashable."""
    return cache(function)  # type: ignore[return-value]


LARGEST_WHOLE = 2**31 - 1
"""Of whole numbers where an option of this package says nothing: many who read them take 32 bits."""

LARGEST = 1e9
"""Of other numbers: products of some stay within a float32, and waits within what clocks take."""

_UNIONS = (typing.Union, types.UnionType)
REQUIRED = dataclasses.MISSING
"""Default of an option that has to be given."""

Limits = Mapping[str, Any]
"""What :func:`limits` makes, perhaps beside other things."""


def limits(
    *,
    choices: tuple[Any, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> dict[str, Any]:
    """Limits of a value, e.g. ``Annotated[int, limits(low=1)]``; ``above`` and ``below`` exclude the bound."""
    return {"choices": choices, "low": low, "high": high, "above": above, "below": below}


class Holds(typing.NamedTuple):
    """What a mapping or list of an option holds: a group's options, or several groups by name or in a list."""

    group: type
    form: str = ""


NAMED, LISTED = "named", "listed"
"""Forms of :class:`Holds`: name -> group, and a list of groups, each of which may be its first option alone."""


def option(
    default: Any,
    doc: str,
    *,
    choices: tuple[Any, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    stranger: bool | Callable[[Any], bool] | None = None,
    schedulable: bool = False,
    path: bool = False,
    carded: bool = True,
    holds: Holds | None = None,
    of: tuple[str, ...] = (),
    needed: bool = False,
    always: bool = False,
) -> Any:
    """A dataclass field with documentation and limits (:func:`limits`).

    Args:
        default: Lists and dicts are copied per instance. :data:`REQUIRED`: there is none.
        doc: One or two sentences for the reference.
        stranger: Whether a stranger's file may set it (:mod:`.trust`): always, never, or a test of values.
            ``None``: numbers, booleans and ``choices`` only.
        schedulable: Whether a schedule may change it (:mod:`.schedules`): it is read in every iteration.
        path: Whether it may name a file or directory (:func:`~rllib_lmgame.base.storage.with_whole_paths`).
        carded: Whether a model card says it.
        holds: What a mapping or list holds.
        of: Types of a tagged group that have it; empty: all.
        needed: Whether these cannot do without it.
        always: Of an update's options: whether it is read whatever the update minimises, as in supervised learning.
    """
    own = {"doc": doc, "stranger": stranger, "schedulable": schedulable, "path": path, "carded": carded}
    metadata = {
        **own,
        "always": always,
        "holds": holds,
        "of": of,
        "needed": needed,
        **limits(choices=choices, low=low, high=high, above=above, below=below),
    }
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def tag(default: str, doc: str, *, choices: tuple[str, ...] | None = None, stranger: Any = None) -> Any:
    """The field that says which type of a group it is; its value alone may stand for the group."""
    field = option(default, doc, choices=choices, stranger=stranger)
    return dataclasses.field(default=default, metadata={**field.metadata, "tag": True})


def arguments() -> Any:
    """The field of a tagged group that takes all keys which are no options: arguments of a plug-in."""
    return dataclasses.field(default_factory=dict, metadata={"arguments": True})


def build(cls: type[T], values: Any, path: str = "", base: T | None = None) -> T:
    """Build option group ``cls`` from ``values``, on top of ``base``.

    Args:
        values: A mapping, the type alone of a tagged group, or a built group.
        base: Used where ``values`` says nothing, except options of another type.

    Raises: ConfigError: for a wrong key, type, range or combination, or a missing option.
    """
    kind, options = tag_of(cls), declared(cls)
    if isinstance(values, cls):
        for key, each in options.items():
            if not each.says.get("arguments"):
                _check_option(value_at(values, key), each, cls, key_below(path, key), None)
        if kind:
            _check_belongs(values, given(values), path)
        return values
    if kind and isinstance(values, str):
        values = {kind: values}
    if not isinstance(values, Mapping):
        foreign = dataclasses.is_dataclass(values)  # Such as PEFT's LoraConfig.
        meant = "; {} is all defaults" if values is True else f"; its keys: {', '.join(options)}" if foreign else ""
        expected = f"{'a name or ' if kind else ''}a mapping of options"
        got = f"an object {type(values).__name__}" if foreign else describe(values)
        raise ConfigError(path, f"expected {expected}, got {got}{meant}")
    if kind and base is not None:
        base = _of_type(base, values.get(kind))
    rest = next((key for key, each in options.items() if each.says.get("arguments")), None)
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key in options and key != rest:
            name = options[key].field.name
            checked[name] = _check_option(value, options[key], cls, key_below(path, key), getattr(base, name, None))
        elif rest is None or not isinstance(key, str):
            raise unknown_key(str(key), options.keys() - {rest}, path)
        else:
            checked.setdefault(rest, dict(getattr(base, rest, {})))[key] = value
    for each in options.values() if base is None else ():
        if each.field.name not in checked and each.default is REQUIRED:
            raise _missing(each, path)
    made: Any = cls(**checked) if base is None else dataclasses.replace(base, **checked)  # type: ignore[type-var]
    if kind:
        _check_belongs(made, values, path)
    object.__setattr__(made, _GIVEN, frozenset(map(str, values)) | (frozenset() if base is None else given(base)))
    return made  # type: ignore[no-any-return]


def _missing(each: Option, path: str) -> ConfigError:
    return ConfigError(key_below(path, each.key), f"is missing: {each.says['doc'].partition('. ')[0].rstrip('.')}")


_GIVEN = "_given"


def key_below(path: str, key: Any) -> str:
    """The dotted key of an option of the group at ``path``."""
    return f"{path}.{key}" if path else str(key)


def _check_option(value: Any, each: Option, cls: type, path: str, base: Any) -> Any:
    if each.group is None:
        return check_value(value, each.hint, _limits_of(each.field, cls), path)
    return None if value is None and each.nullable else build(each.group, value, path, base)


def _of_type(options: Any, chosen: Any) -> Any:
    """A tagged group without what another type than the chosen one has alone."""
    if chosen in (None, _type_of(options)):
        return options
    return dataclasses.replace(
        options,
        **{
            each.field.name: each.default
            for each in declared(type(options)).values()
            if each.says.get("arguments") or (each.says.get("of") and chosen not in each.says["of"])
        },
    )


def _type_of(options: Any) -> str:
    """The type of a tagged group; "" of a group that has none."""
    kind = tag_of(type(options))
    return str(value_at(options, kind)) if kind else ""


def _check_belongs(options: Any, keys: Iterable[str], path: str) -> None:
    """Raise for options of another type of a tagged group, or missing ones; plug-ins check their own."""
    kind, chosen = tag_of(type(options)), _type_of(options)
    for key, each in declared(type(options)).items():
        if each.says.get("needed") and chosen in each.says["of"] and value_at(options, key) is None:
            raise _missing(each, path)
    for key in keys:
        if key in declared(type(options)) and not has_option(options, key):
            of = " or ".join(declared(type(options))[key].says["of"])
            raise ConfigError(key_below(path, key), f"has no effect with {kind}: {chosen}; it belongs to {kind}: {of}")


@dataclasses.dataclass(frozen=True)
class Option:
    """A declared option, or a group of options in a group.

    Attributes:
        key: Its dotted key below the group that was asked.
        field: Its declaration; ``metadata`` is what :func:`option` was told.
        hint: Its type.
        group: The group that it is, or ``None``.
    """

    key: str
    field: dataclasses.Field[Any]
    hint: Any
    group: type | None

    @property
    def says(self) -> Mapping[str, Any]:
        """Limits, documentation, trust ..., as :func:`option` was told."""
        return self.field.metadata

    @property
    def default(self) -> Any:
        """A new one; :data:`REQUIRED` if there is none."""
        return self.field.default if self.field.default_factory is REQUIRED else self.field.default_factory()

    @property
    def holds(self) -> Holds | None:
        """What a mapping or list holds."""
        return self.says.get("holds")

    @property
    def nullable(self) -> bool:
        """Whether it may be ``None``."""
        return type(None) in typing.get_args(self.hint)


@_once
def declared(group: type) -> dict[str, Option]:
    """A group's own options by their keys; a key that is a word of Python, as ``in``, is a field with ``_``."""
    hints, found = typing.get_type_hints(group), {}
    for field in dataclasses.fields(group):
        key, hint = field.name.rstrip("_"), hints[field.name]
        inner = next((arm for arm in arms_of(hint) if isinstance(arm, type) and dataclasses.is_dataclass(arm)), None)
        found[key] = Option(key, field, hint, inner)
    return found


@_once
def walk(group: type) -> tuple[Option, ...]:
    """All options of a group and of the groups in it, by their dotted keys; each group before what is in it."""
    found: list[Option] = []
    for option in declared(group).values():
        below = walk(option.group) if option.group else ()
        found += [option, *(dataclasses.replace(each, key=f"{option.key}.{each.key}") for each in below)]
    return tuple(found)


@_once
def leaves(group: type) -> dict[str, Option]:
    """Those of :func:`walk` that are no groups."""
    return {each.key: each for each in walk(group) if each.group is None}


@_once
def tag_of(group: type) -> str | None:
    """Name of the option that says which type of a group it is; ``None`` if it has no types."""
    return next((key for key, each in declared(group).items() if each.says.get("tag")), None)


def has_option(options: Any, key: str) -> bool:
    """Whether the type of a group has an option; a plug-in's may have any."""
    of, chosen = declared(type(options))[key].says.get("of"), _type_of(options)
    return not of or chosen in of or ":" in chosen


def value_at(options: Any, key: str) -> Any:
    """The value of a dotted key; ``None`` where a group on the way is off."""
    for part in key.split("."):
        options = None if options is None else getattr(options, declared(type(options))[part].field.name)
    return options


def with_changes(options: T, changes: Mapping[str, Any]) -> T:
    """A group with changed values at dotted keys, all checked; keys in groups that are off are skipped."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        head, _, rest = key.partition(".")
        name = declared(type(options))[head].field.name
        if not rest:
            own[name] = value
        elif getattr(options, name) is not None:
            inner.setdefault(name, {})[rest] = value
    own |= {name: with_changes(getattr(options, name), values) for name, values in inner.items()}
    made = dataclasses.replace(options, **own)  # type: ignore[type-var]
    object.__setattr__(made, _GIVEN, given(options) | {key.partition(".")[0] for key in changes})
    return made


def given(options: Any) -> frozenset[str]:
    """Keys of a group's own options that were written, or that are not as they would be without a word."""
    other = {key for key, each in declared(type(options)).items() if value_at(options, key) != each.default}
    return frozenset(vars(options).get(_GIVEN, ())) | other


def values_of(options: Any) -> dict[str, Any]:
    """Field -> value of a group."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}


def as_mapping(options: Any) -> dict[str, Any]:
    """What :func:`build` makes an equal group of, groups in it included: plain data if its values are."""
    found: dict[str, Any] = {}
    plugin = ":" in _type_of(options)
    for key, each in declared(type(options)).items():
        value = value_at(options, key)
        if each.says.get("arguments"):
            found |= copy.deepcopy(value)
        elif has_option(options, key) and not (plugin and value == each.default):
            found[key] = as_mapping(value) if each.group and value is not None else copy.deepcopy(value)
    return found


def _limits_of(field: dataclasses.Field[Any], group: type) -> Limits:
    """Limits of a field; without any, one of somebody else's group takes every finite number: not ours to know."""
    declares = next(cls for cls in group.__mro__ if field.name in inspect.get_annotations(cls))
    own = declares.__module__.partition(".")[0] == __name__.partition(".")[0]
    if own or field.metadata.get("high") is not None:
        return field.metadata
    return {**field.metadata, "high": sys.float_info.max}


def unknown_key(key: Any, valid: Any, path: str) -> ConfigError:
    """The error for a key that does not exist, with the nearest one."""
    where = key_below(path, key)
    hint = did_you_mean(key, valid, "valid keys: " + ", ".join(sorted(valid)))
    return ConfigError(where, f"unknown key; {hint}")


def check_value(value: Any, hint: Any, metadata: Limits, path: str) -> Any:
    """Check one value by annotation and limits; returns it, an ``int`` converted where a float is due."""
    value = _check_type(value, hint, path)
    choices = metadata.get("choices")
    if choices and value not in choices and value is not None:
        match = nearest(str(value), [str(c) for c in choices])
        hint_text = f" (did you mean {match!r}?)" if match else ""
        raise ConfigError(path, f"{shown(value)} is not one of {', '.join(map(repr, choices))}{hint_text}")
    for where, number in _numbers(value, hint, path):
        _check_size(number, metadata.get("low"), metadata.get("high"), where)
        for name, wrong, words in _BOUNDS:
            bound = metadata.get(name)
            if bound is not None and wrong(number, bound):
                raise ConfigError(where, f"must be {words} {digits(bound)}, got {digits(number)}")
    return value


_BOUNDS = (
    ("low", operator.lt, "at least"),
    ("above", operator.le, "greater than"),
    ("below", operator.ge, "less than"),
)


def _numbers(value: Any, hint: Any, path: str) -> Iterator[tuple[str, int | float]]:
    """The number that a value is, or those of a list or of a mapping to numbers, and where they are."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):  # What is in lists of lists, those check who read them.
            if not isinstance(item, list | tuple):
                yield from _numbers(item, None, f"{path}[{position}]")
    elif isinstance(value, Mapping) and any(typing.get_args(arm)[1:] in ((int,), (float,)) for arm in arms_of(hint)):
        for key, item in value.items():
            yield from _numbers(item, None, f"{path}.{key}")


def _check_size(number: int | float, low: float | None, high: float | None, path: str) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise ConfigError(path, f"must be a finite number, got {number}")
    largest = LARGEST_WHOLE if isinstance(number, int) else LARGEST
    high, least = (largest, -largest) if high is None else (high, -max(high, largest))
    if low is not None:
        least = min(low, least)
    if number > high:
        raise ConfigError(path, f"must be at most {digits(high)}, got {digits(number)}")
    if number < least:
        raise ConfigError(path, f"must be at least {digits(least)}, got {digits(number)}")


def digits(number: float) -> str:
    """A number as text: a whole one with all of its digits, unless these are very many."""
    if abs(number) > sys.float_info.max:
        return "a whole number of more than 300 digits"
    return f"{int(number)}" if abs(number) < 1e15 and number == int(number) else f"{number:g}"


def describe(value: Any) -> str:
    """A value and its kind, as a user who wrote YAML would name it."""
    kinds: dict[type, str] = {
        str: "the text",
        bool: "the truth value",
        int: "the whole number",
        float: "the number",
        list: "the list",
        dict: "the mapping",
    }
    if value is None:
        return "nothing (null)"
    return f"{kinds.get(type(value), type(value).__name__)} {shown(value)}"


def arms_of(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows."""
    return typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)


def _check_type(value: Any, hint: Any, path: str) -> Any:
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in _UNIONS:
        for arm in arms:
            with suppress(ConfigError):
                return _check_type(value, arm, path)
    elif origin is typing.Literal:
        if value in arms:
            return value
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise ConfigError(path, "a whole number of more than 300 digits") from None
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    elif origin is Callable:
        if callable(value):
            return value
    elif origin in (list, tuple):
        if isinstance(value, list | tuple):
            inner = arms[:1] * len(value) if origin is list or arms[1:] == (Ellipsis,) else arms
            if len(inner) == len(value):
                pairs = enumerate(zip(value, inner, strict=True))
                return origin(_check_type(item, arm, f"{path}[{place}]") for place, (item, arm) in pairs)
    elif origin is dict:
        if isinstance(value, Mapping):
            return {key: _check_type(item, arms[1], f"{path}.{key}") for key, item in value.items()}
    elif isinstance(hint, type) and isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    raise ConfigError(path, f"expected {type_name(hint)}, got {describe(value)}{_number_hint(value, hint)}")


def _number_hint(value: Any, hint: Any) -> str:
    """YAML 1.1 reads ``1e-6`` as text: say so."""
    arms = typing.get_args(hint) or (hint,)
    if isinstance(value, str) and (float in arms or int in arms):
        try:
            float(value)
        except ValueError:
            return ""
        return f" (write the number without quotes: {value})"
    return ""


def default_text(default: Any) -> str:
    """A default as YAML would have it; of a long text its beginning."""
    if default is REQUIRED:
        return "must be given"
    text = yaml_text(_plain(default))
    return text if len(text) <= 100 else f'{text[:60].rsplit(" ", 1)[0]} ..."'


def _plain(value: Any) -> Any:
    """A group as YAML would have it: its type alone if nothing else is set, else what is set."""
    if not dataclasses.is_dataclass(value):
        return value
    kind = tag_of(type(value))
    said = {key: _plain(value_at(value, key)) for key in sorted(given(value))}
    return value_at(value, kind) if kind and said.keys() <= {kind} else said


def yaml_text(value: Any) -> str:
    """A simple value as it stands in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if value and re.fullmatch(r"[\w./-]+", value) else f'"{value}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_text(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {yaml_text(v)}" for k, v in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    if dataclasses.is_dataclass(hint):
        return "a name or options" if isinstance(hint, type) and tag_of(hint) else "options"
    origin = typing.get_origin(hint)
    if origin in _UNIONS:
        return " or ".join(type_name(a) for a in typing.get_args(hint))
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(hint))
    if origin in (list, tuple):
        return "a list of " + type_name((typing.get_args(hint) or (Any,))[0])
    if origin is dict:
        return "a mapping"
    return "any value" if hint is Any else getattr(hint, "__name__", str(hint))
