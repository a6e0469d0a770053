"""Errors a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from rllib_lmgame.text import printable


class ConfigError(ValueError):
    """A configuration value that cannot work.

    Args:
        path: Dotted key the error is about, e.g. ``config.inference.temperature``.
        message: What is wrong and what would be right.
        source: ``file:line`` of the value when it is known.
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
    """The valid key closest to ``key`` (which in YAML may be a number), or ``None`` if none is close: as like as
    ``cutoff``, 1 being the same. Never ``key`` itself: nobody is helped by what they wrote.
    """
    word = str(key)
    matches = difflib.get_close_matches(word, [other for other in valid if other != word], n=1, cutoff=cutoff)
    return matches[0] if matches else None
