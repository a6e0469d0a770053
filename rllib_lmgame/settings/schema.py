"""Typed, documented, range-checked option groups.

An option group is a frozen dataclass whose fields are made with :func:`option`. :func:`build` turns a
plain mapping (a section of a YAML file, keyword arguments) into one, or raises
:class:`~rllib_lmgame.errors.ConfigError` naming the key, what is wrong and what would be right. The
configuration reference in ``docs/`` is generated from the same fields.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.text import shown

logger = logging.getLogger(__name__)

T = TypeVar("T")

LARGEST_WHOLE = 2**31 - 1
"""Whole numbers have no larger amount where an option of this package says nothing: seeds and counts are 32-bit numbers
to many who read them."""

LARGEST = 1e9
"""Likewise for other numbers: products of some of them stay within a float32, and waits within what clocks take."""

Limits = Mapping[str, Any]
"""What :func:`limits` makes: limits by name, as a field's metadata holds them beside other things."""


def limits(
    *,
    choices: tuple[Any, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> dict[str, Any]:
    """Limits of a value, for the arguments of a function: ``Annotated[int, limits(low=1)]``.

    Args:
        choices: Allowed values.
        low: Smallest allowed number (inclusive).
        high: Largest allowed number (inclusive).
        above: Exclusive lower bound.
    """
    return {"choices": choices, "low": low, "high": high, "above": above}


def option(
    default: Any,
    doc: str,
    *,
    choices: tuple[Any, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    stranger: bool | Callable[[Any], bool] | None = None,
    schedulable: bool = False,
    path: bool = False,
) -> Any:
    """A dataclass field with documentation and limits.

    Args:
        default: Default value; a ``list`` or ``dict`` default is copied per instance.
        doc: One or two sentences for the configuration reference.
        choices, low, high, above: As in :func:`limits`.
        stranger: Whether a file that this user did not write may set it (:mod:`.trust`): always, never, or
            to which values. ``None``: to numbers, truth values and the ``choices``, but to no other text.
        schedulable: Whether a schedule may change it during a run (:mod:`.schedules`): its present value is
            read in every iteration.
        path: Whether it may name a file or a directory (:func:`~rllib_lmgame.storage.with_whole_paths`).
    """
    own = {"doc": doc, "stranger": stranger, "schedulable": schedulable, "path": path}
    metadata = {**own, **limits(choices=choices, low=low, high=high, above=above)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def build(cls: type[T], values: Mapping[str, Any], path: str = "", base: T | None = None) -> T:
    """Build option group ``cls`` from ``values``, on top of ``base`` if given.

    Raises:
        ConfigError: for an unknown key, a wrong type, or a value out of range.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(path, f"expected a mapping of options, got {describe(values)}")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    checked: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in fields:
            raise unknown_key(str(key), fields, path)
        checked[key] = check_value(value, hints[key], _limits_of(fields[key], cls), where)
    if base is not None:
        return dataclasses.replace(base, **checked)  # type: ignore[type-var]
    return cls(**checked)


def _limits_of(field: dataclasses.Field[Any], group: type) -> Limits:
    """Limits of a field; without any, one of somebody else's group takes every finite number: not ours to know."""
    declares = next(cls for cls in group.__mro__ if field.name in inspect.get_annotations(cls))
    own = declares.__module__.partition(".")[0] == __name__.partition(".")[0]
    if own or field.metadata.get("high") is not None:
        return field.metadata
    return {**field.metadata, "high": sys.float_info.max}


def with_new_names(values: Any, names: Mapping[str, str], path: str) -> Any:
    """A mapping of options with the names that they have now; of an old one a warning says so, once.

    Args:
        values: The mapping; anything else is left to :func:`build`.
        names: Old name -> new name.
        path: Key of the mapping.

    Raises:
        ConfigError: for an old name beside its new one.
    """
    if not isinstance(values, Mapping) or names.keys().isdisjoint(values):
        return values
    for old, new in names.items():
        if old in values and new in values:
            raise ConfigError(f"{path}.{old}", f"is the old name of {new}, which is set too; keep one")
        if old in values:
            _tell_renamed(f"{path}.{old}", f"{path}.{new}")
    return {names.get(key, key): value for key, value in values.items()}


@cache
def _tell_renamed(old: str, new: str) -> None:
    logger.warning("%s is now %s", old, new)


def unknown_key(key: Any, valid: Any, path: str) -> ConfigError:
    """The error for a key that does not exist, with the nearest one that does."""
    where = f"{path}.{key}" if path else str(key)
    match = nearest(key, valid)
    hint = f"did you mean {match!r}?" if match else "valid keys: " + ", ".join(sorted(valid))
    return ConfigError(where, f"unknown key; {hint}")


def check_value(value: Any, hint: Any, metadata: Limits, path: str) -> Any:
    """Check one value against its annotation and limits; returns it, with an ``int`` where a float is due converted.
    Numbers in lists and mappings of numbers are not infinite, and no larger than any may be.
    """
    value = _check_type(value, hint, path)
    choices = metadata.get("choices")
    if choices and value not in choices and value is not None:
        match = nearest(str(value), [str(c) for c in choices])
        hint_text = f" (did you mean {match!r}?)" if match else ""
        raise ConfigError(path, f"{shown(value)} is not one of {', '.join(map(repr, choices))}{hint_text}")
    for where, number in _numbers(value, hint, path):
        _check_size(number, metadata.get("low"), metadata.get("high"), where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, above = metadata.get("low"), metadata.get("above")
        if low is not None and value < low:
            raise ConfigError(path, f"must be at least {digits(low)}, got {digits(value)}")
        if above is not None and value <= above:
            raise ConfigError(path, f"must be greater than {digits(above)}, got {digits(value)}")
    return value


def _numbers(value: Any, hint: Any, path: str) -> Iterator[tuple[str, int | float]]:
    """The number that a value is, or those of a list or of a mapping to numbers, and where they are."""
    if isinstance(value, int | float):
        if not isinstance(value, bool):
            yield path, value
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):  # What is in lists of lists, those check who read them.
            if not isinstance(item, list | tuple):
                yield from _numbers(item, None, f"{path}[{position}]")
    elif isinstance(value, Mapping) and typing.get_args(hint)[1:] in ((int,), (float,)):
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


def _check_type(value: Any, hint: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        errors: list[ConfigError] = []
        for arm in typing.get_args(hint):
            try:
                return _check_type(value, arm, path)
            except ConfigError as error:
                errors.append(error)
        raise ConfigError(path, f"expected {type_name(hint)}, got {describe(value)}{_number_hint(value, hint)}")
    if origin is typing.Literal:
        if value in typing.get_args(hint):
            return value
    elif hint is type(None):
        if value is None:
            return None
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
    elif origin is Callable or hint is Callable or origin is typing.get_origin(Callable[..., Any]):
        if callable(value):
            return value
    elif origin is list:
        if isinstance(value, list | tuple):
            (arm,) = typing.get_args(hint) or (Any,)
            return [_check_type(v, arm, f"{path}[{i}]") for i, v in enumerate(value)]
    elif origin is tuple:
        if isinstance(value, list | tuple):
            arms = typing.get_args(hint)
            if len(arms) == 2 and arms[1] is Ellipsis:
                return tuple(_check_type(v, arms[0], f"{path}[{i}]") for i, v in enumerate(value))
            if len(arms) == len(value):
                return tuple(
                    _check_type(v, a, f"{path}[{i}]") for i, (v, a) in enumerate(zip(value, arms, strict=True))
                )
    elif origin is dict:
        if isinstance(value, Mapping):
            arm = (typing.get_args(hint) or (Any, Any))[1]
            return {k: _check_type(v, arm, f"{path}.{k}") for k, v in value.items()}
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


def type_name(hint: Any) -> str:
    """An annotation as a reader of YAML knows it."""
    names = {
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        type(None): "null",
        dict: "a mapping",
    }
    if hint in names:
        return names[hint]
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(a) for a in typing.get_args(hint))
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(hint))
    if origin in (list, tuple):
        return "a list of " + type_name((typing.get_args(hint) or (Any,))[0])
    if origin is dict:
        return "a mapping"
    return "any value" if hint is Any else getattr(hint, "__name__", str(hint))
