"""Whether what somebody brings along takes what it will be given: asked of its signature, before anything starts."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.schema import Limits, check_value

_PLAIN = (bool, int, float, str, type(None), list, dict)


def check_arguments(called: Any, given: Mapping[str, Any], key: str, before: int = 0) -> dict[str, Any]:
    """Arguments that a configuration gives to a function or class, checked against its signature and annotations.

    What YAML can write is checked: truth values, numbers, texts, null, lists and mappings of these, and limits
    (``Annotated[int, limits(low=1)]``). An argument that is annotated as anything else, or not at all, is left to what
    is called.

    Args:
        called: The function or class.
        given: The arguments by name.
        key: Configuration key that holds them.
        before: Positional arguments that stand before them.

    Returns:
        The arguments, with an ``int`` where a float is due converted.

    Raises:
        ConfigError: if it does not take these arguments, or a value is of the wrong type or out of range.
    """
    try:
        signature = inspect.signature(called)
        signature.bind(*[None] * before, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(key, f"{getattr(called, '__name__', called)}: {error}") from None
    annotations = _annotations(called)
    checked = dict(given)
    for name in given.keys() & signature.parameters.keys() & annotations.keys():
        left_out = given[name] is None and signature.parameters[name].default is None  # Whatever the annotation says.
        if not left_out and _is_plain(annotations[name]):
            checked[name] = check_value(given[name], *_with_limits(annotations[name]), f"{key}.{name}")
    return checked


def _annotations(called: Any) -> dict[str, Any]:
    """Those of its arguments; none where they name what cannot be found."""
    function = called.__init__ if isinstance(called, type) else called
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # Annotations of others are any expression.
        return {}


def _with_limits(hint: Any) -> tuple[Any, Limits]:
    if typing.get_origin(hint) is not Annotated:
        return hint, {}
    inner, *notes = typing.get_args(hint)
    return inner, next((note for note in notes if isinstance(note, dict)), {})


def _is_plain(hint: Any) -> bool:
    """Whether :func:`~rllib_lmgame.schema.check_value` knows the type, at every depth."""
    hint, _ = _with_limits(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType, list, tuple, dict):
        return all(inner is Ellipsis or _is_plain(inner) for inner in typing.get_args(hint))
    return hint in _PLAIN
