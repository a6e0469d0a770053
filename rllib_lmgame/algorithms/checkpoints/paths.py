"""The checkpoint a user means, itself or that of its trial or experiment; and what is asked before it is unpickled.

That runs code which its files name, so a checkpoint from anywhere is unpickled only with ``--trust-checkpoint``.
``--resume`` goes on with an experiment in the user's own results, whose files nobody else may have written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rllib_lmgame.algorithms.checkpoints.manifest import HF_DIRECTORY, MANIFEST
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.storage import expanded, is_uri

MARKER = "rllib_checkpoint.json"
TRUST_FLAG = "--trust-checkpoint"


def find_checkpoint(path: str) -> str:
    """The checkpoint at or below ``path``: itself, or the newest of the (only) trial there. A URI stays as it is.

    Raises: CheckpointError: if there is none, or there are several trials.
    """
    if is_uri(path):
        return path
    place = expanded(path).absolute()
    if not place.exists():
        held = path.rpartition(":")[0]
        is_player = "; one policy or league member of it is a player, as in `rllib play --players`"
        raise CheckpointError(f"no such directory: {path}{is_player if held and expanded(held).is_dir() else ''}")
    if not place.is_dir():
        raise CheckpointError(f"{path} is a file; a checkpoint is a directory")
    if is_checkpoint(place):
        return str(place)
    own = newest_checkpoint(place)
    if own is not None:
        return str(own)
    trials = [
        (child, newest)
        for child in sorted(place.iterdir())
        if child.is_dir() and (newest := newest_checkpoint(child)) is not None
    ]
    if len(trials) == 1:
        return str(trials[0][1])
    if trials:
        names = "\n  ".join(str(newest) for _, newest in trials)
        raise CheckpointError(f"{path} holds several trials; name one of their checkpoints:\n  {names}")
    why = f"no {MARKER} and no checkpoint_* directory"
    if (place / "config.json").is_file():
        why = f"it is a model, as a player written hf:{path}"
    raise CheckpointError(f"{path} holds no checkpoint ({why})")


def is_checkpoint(place: Path) -> bool:
    return (place / MARKER).is_file()


def newest_checkpoint(trial: Path) -> Path | None:
    found = sorted(p for p in trial.glob("checkpoint_*") if is_checkpoint(p))
    return found[-1] if found else None


def is_own_checkpoint(path: str) -> bool:
    """Whether one of this package's algorithms wrote it: they add a manifest and Hugging Face files."""
    return (Path(path) / HF_DIRECTORY).is_dir() or (Path(path) / MANIFEST).is_file()


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
        raise CheckpointError(f"{changed} is not yours alone, and resuming runs pickled code; {TRUST_FLAG} allows it")


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
