"""Files that a command writes under a name the user gave (``--out``).

1. The file is there whole, or not at all.
2. Nothing of anybody else's is overwritten or removed, also if it comes while the command is at work.
3. A second command that writes the same file is refused.
4. What was written is not lost: where it cannot get its name, the command says where it lies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.storage import expanded

PART = ".part"
"""Ends the name of a file in the making."""


def out_path(path: str | Path, flag: str = "--out") -> Path:
    """What ``flag`` names, wherever a game goes meanwhile. Raises: ConfigError: the working directory is gone."""
    with writing(path, flag):
        return expanded(path).absolute()


@contextmanager
def new_file(path: str | Path, flag: str = "--out") -> Iterator[Path]:
    """A file to write, which gets its name when the context ends without an error; its directory is made.

    Raises: ConfigError: there is such a file, another process is writing it, or it cannot be written.
    """
    out = out_path(path, flag)
    part = out.with_name(out.name + PART)
    for there in (out, part):
        if os.path.lexists(there):
            why = "" if there == out else " (another command writes it, or one was killed)"
            raise ConfigError(flag, f"{there} exists{why}; name another file, or remove it")
    with writing(out, flag):
        if not out.parent.exists():
            out.parent.mkdir(parents=True)
        part.touch(exist_ok=False)
    try:
        yield part
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    try:
        if os.path.lexists(out):
            raise FileExistsError(None, "somebody else made it meanwhile")
        part.rename(out)
    except OSError as error:
        raise ConfigError(flag, f"{_cannot(out, error)}; what was written is in {part}") from None


@contextmanager
def writing(out: str | Path, flag: str = "--out") -> Iterator[None]:
    """An error of the system while something is written for ``out`` (a full disk) becomes a ConfigError about it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(flag, _cannot(out, error)) from None


def _cannot(out: str | Path, error: OSError) -> str:
    return f"{out} cannot be written: {error.strerror or error}"
