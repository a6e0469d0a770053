"""Errors a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rllib_lmgame.base.text import printable

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration value that cannot work.

    ``path`` is its dotted key (``config.inference.temperature``), ``message`` says what is wrong and what would be
    right, ``source`` is its ``file:line`` where that is known, ``others`` are wrong values found with it.
    """

    def __init__(self, path: str, message: str, source: str | None = None, others: Iterable[ConfigError] = ()) -> None:
        self.path = path
        self.message = message
        self.source = source
        self.others = tuple(others)
        where = f"{source}: " if source else ""
        text = printable(f"{where}{path}: {message}" if path else f"{where}{message}")
        super().__init__("\n".join([text, *map(str, self.others)]))

    @classmethod
    def together(cls, errors: Iterable[ConfigError]) -> ConfigError:
        """The first of several errors, which says the others, too."""
        first, *others = [each for error in errors for each in error.each]
        return cls(first.path, first.message, first.source, others)

    @property
    def each(self) -> tuple[ConfigError, ...]:
        """This error alone, and the others."""
        return (ConfigError(self.path, self.message, self.source), *self.others)

    def __reduce__(self):
        return (ConfigError, (self.path, self.message, self.source, self.others))


def of_each(read: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    """What ``read`` makes of each item. Raises: ConfigError: all that is wrong with any of them."""
    found, wrong = list[T](), list[ConfigError]()
    for item in items:
        try:
            found.append(read(item))
        except ConfigError as error:
            wrong.append(error)
    if wrong:
        raise ConfigError.together(wrong)
    return found


class MissingDependencyError(ImportError):
    """An optional package is needed; the message names the extra that installs it."""


class CheckpointError(RuntimeError):
    """A checkpoint is truncated, altered or incomplete; the message names the file."""


def nearest(key: Any, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The valid key closest to ``key`` and not the same; ``None`` if none is as like as ``cutoff`` (1: the same)."""
    word = str(key)
    matches = difflib.get_close_matches(word, [other for other in valid if other != word], n=1, cutoff=cutoff)
    return matches[0] if matches else None


def did_you_mean(key: Any, valid: Iterable[str], otherwise: str) -> str:
    """A hint for a message about an unknown key."""
    match = nearest(key, valid)
    return f"did you mean {match!r}?" if match else otherwise
