"""Errors a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from rllib_lmgame.base.text import printable


class ConfigError(ValueError):
    """A configuration value that cannot work.

    ``path`` is its dotted key (``config.inference.temperature``), ``message`` says what is wrong and what would be
    right, ``source`` is its ``file:line`` where that is known.
    """

    def __init__(self, path: str, message: str, source: str | None = None) -> None:
        self.path = path
        self.message = message
        self.source = source
        where = f"{source}: " if source else ""
        super().__init__(printable(f"{where}{path}: {message}" if path else f"{where}{message}"))

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (ConfigError, (self.path, self.message, self.source))


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
