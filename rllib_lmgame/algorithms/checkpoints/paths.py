"""Finding the checkpoint a user means: the checkpoint itself, its trial, or its experiment."""

from __future__ import annotations

from pathlib import Path

from rllib_lmgame.algorithms.checkpoints.manifest import HF_DIRECTORY, MANIFEST
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.storage import expanded, is_uri

MARKER = "rllib_checkpoint.json"


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
    """Whether ``place`` is the directory of one checkpoint."""
    return (place / MARKER).is_file()


def newest_checkpoint(trial: Path) -> Path | None:
    """The newest checkpoint of a trial."""
    found = sorted(p for p in trial.glob("checkpoint_*") if is_checkpoint(p))
    return found[-1] if found else None


def is_own_checkpoint(path: str) -> bool:
    """Whether one of this package's algorithms wrote it: they add a manifest and Hugging Face files."""
    return (Path(path) / HF_DIRECTORY).is_dir() or (Path(path) / MANIFEST).is_file()
