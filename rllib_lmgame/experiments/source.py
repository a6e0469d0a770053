"""Where each value of an experiment was written: file and line, or a command-line override."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rllib_lmgame.errors import ConfigError


def dotted(parts: Iterable[str | int]) -> str:
    """``("config", "lr", 0)`` as ``config.lr[0]``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


@dataclass
class Source:
    """Maps dotted keys to the place they come from.

    Args:
        name: File name (or other origin) shown in messages.
        places: Dotted key -> ``file:line`` or another description of the place.
    """

    name: str
    places: dict[str, str] = field(default_factory=dict)

    def record(self, parts: Iterable[str | int], place: str) -> str:
        """Remember where a key was written; returns the dotted key."""
        key = dotted(parts)
        self.places[key] = place
        return key

    def replace(self, path: str, place: str) -> None:
        """Remember that ``path`` and all below it is now written at ``place``."""
        for below in [key for key in self.places if key.startswith((path + ".", path + "["))]:
            del self.places[below]
        self.places[path] = place

    def locate(self, path: str) -> str | None:
        """Place of ``path``, or of the nearest key around it; ``None`` if nothing is known."""
        while path:
            if path in self.places:
                return self.places[path]
            path = parent(path)
        return self.places.get("", self.name or None)

    def scoped(self, prefix: str) -> Source:
        """The places below ``prefix``, with keys relative to it."""
        places = {"": self.places.get(prefix, self.name)}
        for key, place in self.places.items():
            if key.startswith(prefix) and key[len(prefix) : len(prefix) + 1] in {".", "["}:
                places[key[len(prefix) :].removeprefix(".")] = place
        return Source(self.name, places)

    def error(self, path: str, message: str) -> ConfigError:
        """A :class:`ConfigError` that knows its file and line."""
        return ConfigError(path, message, self.locate(path))

    def attach(self, error: ConfigError, prefix: str = "") -> ConfigError:
        """The same error with ``prefix`` in front of its key, and with its place if it has none."""
        path = error.path
        if prefix and not (path == prefix or path.startswith(prefix + ".")):
            path = f"{prefix}.{path}" if path else prefix
        return ConfigError(path, error.message, error.source or self.locate(path))

    @contextmanager
    def attached(self) -> Iterator[None]:
        """A :class:`ConfigError` raised inside gets its place."""
        try:
            yield
        except ConfigError as error:
            raise self.attach(error) from error.__cause__


def parent(path: str) -> str:
    """The key around ``path``: ``a.b[0]`` -> ``a.b`` -> ``a`` -> ````."""
    if path.endswith("]"):
        start = path.rfind("[")
        return path[:start] if start > path.rfind("]", 0, -1) else ""
    end = max(path.rfind(mark) for mark in ".[]")
    if end in (-1, len(path) - 1):
        return ""
    return path[:end] if path[end] == "." else path[: end + 1]
