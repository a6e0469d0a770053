"""The files commands write."""

from __future__ import annotations

import os
from pathlib import Path

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.storage import expanded


def out_path(path: str) -> Path:
    """What ``--out`` names.

    Raises:
        ConfigError: if it is in the home directory of a user whom nobody knows.
    """
    out = expanded(path)
    if out.parts and out.parts[0].startswith("~"):
        raise ConfigError("--out", f"there is no user {out.parts[0][1:]!r}; write ./{out} for a directory of that name")
    return out


def new_file(path: str) -> Path:
    """The file ``--out`` names, its directory made.

    Raises:
        ConfigError: if it exists already or cannot be written.
    """
    out = out_path(path)
    try:
        if out.exists():
            raise ConfigError("--out", f"{out} exists; name another file, or remove it")
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError("--out", f"{out.parent} is not a directory") from None
    except OSError as error:
        raise ConfigError("--out", f"{out} cannot be written: {error.strerror}") from None
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError("--out", f"{out.parent} is not writable")
    return out
