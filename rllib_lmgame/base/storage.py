"""Where results are kept: in a directory, or at a URI (``s3://bucket/runs``), which Ray reads and writes itself."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.base.group import declared

CACHE = "RLLIB_LMGAME_CACHE"


def is_uri(path: str | Path) -> bool:
    """Whether ``path`` is the URI of remote storage, which is no path of this machine."""
    return "://" in str(path)


def absolute(path: str) -> str:
    """A directory's absolute path, ``~`` replaced; a URI without slashes at its end."""
    return path.rstrip("/") if is_uri(path) else str(expanded(path).absolute())


def expanded(path: str | Path) -> Path:
    """``path`` with the home directory for ``~``; as it is where it names an unknown user, as shells do."""
    return Path(os.path.expanduser(path))


def own_cache() -> Path:
    """Where what this package fetches and makes is kept, which it can fetch and make again: ``$RLLIB_LMGAME_CACHE``, by
    default ``rllib_lmgame`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(os.environ.get(CACHE) or os.path.join(above, "rllib_lmgame")).absolute()


def follow_umask(file: Path) -> None:
    """Give a file the mode of any new one: safetensors makes files that their owner alone can read."""
    plain = file.with_name(f".{file.name}.mode")
    plain.touch()
    shutil.copymode(plain, file)
    plain.unlink()


def with_absolute_paths(group: type, values: Any) -> Any:
    """Options with absolute paths where they name files and directories that are there; all else stays as it is.

    A trial has a working directory of its own, in which a relative path leads nowhere.
    """
    if not isinstance(values, Mapping):
        return values
    words = {key: each.default for key, each in declared(group).items() if each.says.get("path")}
    return {key: _whole(value, words[key]) if key in words else value for key, value in values.items()}


def _whole(value: Any, word: Any) -> Any:
    """A text other than ``word`` as an absolute path if it is one, and so the texts of a search space."""
    if isinstance(value, Mapping):
        return {key: _whole(item, word) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item, word) for item in value]
    if not isinstance(value, str) or value == word:
        return value
    try:
        found = expanded(value).exists() or (glob.has_magic(value) and matches(value))
        return absolute(value) if found else value
    except (OSError, ValueError):  # A text too long or odd to be a path.
        return value


def matches(pattern: str | Path) -> list[Path]:
    """The paths that a pattern stands for, in order; in the directories before it that exist, nothing is a pattern."""
    path = expanded(pattern)
    there = next(parent for parent in path.parents if parent.is_dir())
    return sorted(there / found for found in glob.glob(str(path.relative_to(there)), root_dir=there, recursive=True))


def is_remote(path: str) -> bool:
    return path.startswith(("http://", "https://"))
