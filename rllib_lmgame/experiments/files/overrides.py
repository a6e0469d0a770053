"""``--set config.lr=1e-6``: settings given on the command line."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.files.loader import parse_value
from rllib_lmgame.experiments.source import Source


def apply_overrides(experiments: Mapping[str, Any], source: Source, overrides: Iterable[str]) -> dict[str, Any]:
    """Set values in every experiment of a file.

    Args:
        experiments: Experiments by name, as read; left as they are.
        source: Places of their keys; the overridden ones are recorded as coming from the command line.
        overrides: Texts ``path.to.key=value``; the value is YAML. In front of the path may stand the name of an
            experiment and a colon, to set it in that one only. ``key=`` followed by nothing sets null.

    Raises:
        ConfigError: for a text without ``=``, a value that is not YAML, or a path through something
            that is not a mapping.
    """
    result = copy.deepcopy(dict(experiments))
    for text in overrides:
        path, value, only = _parse(text, result)
        for name in [only] if only else list(result):
            if not isinstance(result[name], dict):
                continue
            _set(result[name], path, copy.deepcopy(value), text)
            _record(source, name, path, text)
    return result


def override_values(overrides: Iterable[str]) -> list[dict[str, Any]]:
    """Each override's value below the last part of its key, e.g. ``{"env": "mine:Game"}`` of
    ``config.env=mine:Game``.
    """
    found = []
    for text in overrides:
        path, _, value = text.partition("=")
        found.append({path.strip().rpartition(".")[2].rpartition(":")[2]: parse_value(value, f"--set {text}")})
    return found


def _parse(text: str, experiments: Mapping[str, Any]) -> tuple[list[str], Any, str | None]:
    path, equals, value = text.partition("=")
    place = f"--set {text}"
    if not equals or not path.strip():
        raise ConfigError("", "write --set key.of.the.setting=value, e.g. --set config.lr=1e-6", place)
    only, colon, rest = path.strip().partition(":")
    if colon:
        if only not in experiments:
            raise ConfigError("", f"there is no experiment {only!r}; the file has {', '.join(experiments)}", place)
        path = rest
    parts = [p.strip() for p in path.split(".")]
    if not all(parts):
        raise ConfigError("", "the key has an empty part", place)
    return parts, parse_value(value, place), only if colon else None


def _set(settings: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    section: Any = settings
    left = path
    while len(left) > (taken := _length_of_key(section, left)):
        key, left = ".".join(left[:taken]), left[taken:]
        inner = section.get(key)
        if inner is None:
            inner = section[key] = {}
        if not isinstance(inner, dict):
            above = ".".join(path[: len(path) - len(left)])
            raise ConfigError(".".join(path), f"{above} is not a mapping", f"--set {text}")
        section = inner
    section[".".join(left)] = value


def _length_of_key(section: Mapping[str, Any], path: list[str]) -> int:
    """Parts of the path that are one key of the section, which may have dots itself: as many as there are of one that
    stands there, else one.
    """
    return next((n for n in range(len(path), 1, -1) if ".".join(path[:n]) in section), 1)


def _record(source: Source, name: str, path: list[str], text: str) -> None:
    for end in range(1, len(path)):
        source.places.setdefault(".".join([name, *path[:end]]), f"--set {text}")
    source.replace(".".join([name, *path]), f"--set {text}")
