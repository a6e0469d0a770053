"""What is asked before a file is unpickled, which runs code that it names.

A checkpoint may come from anywhere, so it is unpickled, and code that it names is imported, only with
``--trust-checkpoint``. ``--resume`` goes on with an experiment that the user names in their own results, whose files
nobody else may have written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.storage import is_uri

TRUST_FLAG = "--trust-checkpoint"


def check_unpickling(checkpoint: str, trust: bool) -> None:
    """Raise CheckpointError unless the user says ``trust``."""
    if not trust:
        raise CheckpointError(f"{checkpoint} holds pickled code; if you trust whoever wrote it, pass {TRUST_FLAG}")


def check_resuming(directory: str, trust: bool) -> None:
    """Raise CheckpointError if others can have written into an experiment, unless ``trust``: its state is unpickled."""
    if trust or is_uri(directory):
        return
    changed = next(filter(_is_open_to_others, (Path(directory), *_below(Path(directory)))), None)
    if changed is not None:
        raise CheckpointError(
            f"{changed} is not yours alone, and resuming runs pickled code; if you trust whoever can write it, pass "
            f"{TRUST_FLAG}"
        )


def _below(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory):
        yield from (Path(folder) / name for name in (*folders, *files))


def _is_open_to_others(path: Path) -> bool:
    """Whether somebody else owns a file or directory, everybody can write it, or it is a link."""
    try:
        status = path.lstat()
    except FileNotFoundError:  # Not there, or a run that goes on meanwhile removed it.
        return False
    return status.st_uid != os.getuid() or bool(status.st_mode & stat.S_IWOTH) or stat.S_ISLNK(status.st_mode)
