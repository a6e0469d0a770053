"""Whether what somebody brings along can be used as it will be: asked of its signature, before anything starts."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.settings.schema import Limits, check_value
from rllib_lmgame.text import in_words

_ANY_SIZE = {"high": sys.float_info.max}
"""Of an argument whose function says nothing: it is not ours to know."""

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


def check_call(called: Any, name: str, key: str, takes: str, /, *arguments: Any, **named: Any) -> None:
    """Refuse what cannot be called with such arguments, of which only the number and the names count.

    Args:
        called: What is brought along.
        name: What the user calls it.
        key: Configuration key that names it.
        takes: What it should take, and why, for the message.
        arguments, named: As it will be called.

    Raises:
        ConfigError: if it is no function, or takes something else.
    """
    if not callable(called):
        raise ConfigError(key, f"`{name}` is a {type(called).__name__}, not a function; {takes}")
    try:
        signature = inspect.signature(called)
    except ValueError:  # Some built-in functions have none to look at.
        return
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        raise ConfigError(key, f"`{name}` takes {signature}; {takes}") from None


def check_methods(found: Any, protocol: type, name: str, key: str, hint: str = "") -> None:
    """Refuse what lacks a member of a protocol, or has a method of that name that takes something else.

    Args:
        found: An object, or the class of one that is made later.
        protocol: What is asked for.
        name: What the user calls it.
        key: Configuration key that names it.
        hint: What to do about a missing member.

    Raises:
        ConfigError: naming the members.
    """
    bases = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False) and base is not typing.Protocol]
    needed = {member: value for base in bases for member, value in vars(base).items() if not member.startswith("_")}
    missing = [member for member in needed if not hasattr(found, member)]
    if missing:
        where = f"{protocol.__name__} ({protocol.__module__})"
        raise ConfigError(key, f"`{name}` lacks {', '.join(missing)} of {where}{hint and f'; {hint}'}")
    for member, value in needed.items():
        if inspect.isfunction(value):
            own = (
                (None,) if inspect.isclass(found) and inspect.isfunction(inspect.getattr_static(found, member)) else ()
            )
            arguments, named = _as_called(value)
            takes = f"{protocol.__name__} ({protocol.__module__}) calls it as {inspect.signature(value)}"
            check_call(getattr(found, member), f"{name}.{member}", key, takes, *own, *arguments, **named)


def made(cls: Any, name: str, key: str) -> Any:
    """An object of a class that is made without arguments.

    Args:
        cls: What is brought along.
        name: What the user calls it.
        key: Configuration key that names it.

    Raises:
        ConfigError: if it is no class, takes arguments, or raises.
    """
    if not callable(cls):
        raise ConfigError(key, f"`{name}` is a {type(cls).__name__}, not a class")
    try:
        return cls()
    except TypeError as error:
        raise ConfigError(key, f"`{name}` cannot be made without arguments: {error}") from error
    except Exception as error:
        raise ConfigError(key, f"making `{name}` fails: {in_words(error)}") from error


def _as_called(method: Any) -> tuple[tuple[None, ...], dict[str, None]]:
    """Arguments as those of a protocol's method, which callers give by position unless they must be named."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    named = {parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (None,) * len(placed), named


def _annotations(called: Any) -> dict[str, Any]:
    """Those of its arguments; none where they name what cannot be found."""
    function = called.__init__ if isinstance(called, type) else called
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # Annotations of others are any expression.
        return {}


def _with_limits(hint: Any) -> tuple[Any, Limits]:
    if typing.get_origin(hint) is not Annotated:
        return hint, _ANY_SIZE
    inner, *notes = typing.get_args(hint)
    return inner, next((note for note in notes if isinstance(note, dict)), _ANY_SIZE)


def _is_plain(hint: Any) -> bool:
    """Whether :func:`~rllib_lmgame.settings.schema.check_value` knows the type, at every depth."""
    hint, _ = _with_limits(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType, list, tuple, dict):
        return all(inner in (Ellipsis, Any) or _is_plain(inner) for inner in typing.get_args(hint))
    return hint in _PLAIN
