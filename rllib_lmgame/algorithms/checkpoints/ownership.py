"""Whether this user's runs wrote a checkpoint or experiment: only then is it imported from or unpickled.

A checkpoint is this user's if

 1. its manifest has the user's signature (:mod:`.signing`) and nothing was added, wherever it is; or
 2. it is in a trial's directory of an experiment that this user started. The experiment's directory holds a signature
    of its own path, so copies and foreign archives fail. All files must belong to this user, and be writable at most
    for a group.

Rule 2 covers clusters with different keys per machine (the commanding machine signs), and stock algorithms, which have
no manifest. Whoever can write there as this user or through a group is trusted.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rllib_lmgame.algorithms.checkpoints.manifest import is_signed, read_json
from rllib_lmgame.algorithms.checkpoints.signing import is_signature, sign
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.storage import expanded, is_uri

SIGNATURE_FILE = "started_by.json"
TRUST_FLAG = "--trust-checkpoint"
_SIGNED = "experiment"
_MAX_BYTES = 10_000


def wrote_checkpoint(checkpoint: str | Path) -> bool:
    """Whether a run of this user wrote a checkpoint; :func:`.manifest.verify_manifest` checks the files."""
    if is_uri(checkpoint):
        return False
    place = expanded(checkpoint).absolute()
    if is_signed(place):
        return True
    trial = place.parent
    return is_started_here(trial.parent) and not any(
        map(_is_open_to_others, [trial.parent, trial, place, *_below(place)])
    )


def wrote_experiment(directory: str) -> bool:
    """Whether this user started the experiment at a directory or URI, and nobody else can have written into it."""
    if is_uri(directory):
        return is_started_here(directory)
    place = Path(directory)
    return is_started_here(place) and not any(map(_is_open_to_others, [place, *_below(place)]))


def check_unpickling(checkpoint: str, trust: bool) -> None:
    """Raise CheckpointError unless this user wrote the checkpoint or says ``trust``: it will be unpickled."""
    if not (trust or wrote_checkpoint(checkpoint)):
        raise CheckpointError(
            f"{checkpoint} holds pickled code, and none of your runs wrote it (or others can have changed it); "
            f"if you trust whoever did, pass {TRUST_FLAG}"
        )


def check_resuming(directory: str, trust: bool) -> None:
    """Raise CheckpointError unless this user started the experiment or says ``trust``: resuming unpickles its state."""
    if not (trust or wrote_experiment(directory)) and any(map(_is_state, _names_in(directory))):
        raise CheckpointError(
            f"{directory} holds pickled code, and none of your runs started it there (or others can have changed it); "
            f"if you trust whoever did, pass {TRUST_FLAG}"
        )


def mark_experiment(directory: str) -> None:
    """Sign the directory (or URI) of an experiment that this user starts.

    An existing unsigned experiment is never signed: a later ``--resume`` would unpickle it.
    """
    from pyarrow.fs import FileSystem

    names = _names_in(directory)
    signature = sign(_SIGNED, _name(directory))
    if signature is None or (SIGNATURE_FILE not in names and any(map(_is_state, names))):
        return
    files, path = FileSystem.from_uri(directory)
    files.create_dir(path)
    with files.open_output_stream(f"{path}/{SIGNATURE_FILE}") as file:
        file.write(json.dumps({"signature": signature}).encode())


def _names_in(directory: str) -> set[str]:
    """Names of what lies in a directory or at a URI; none where there is nothing."""
    from pyarrow.fs import FileSelector, FileSystem

    files, path = FileSystem.from_uri(directory)
    return {info.base_name for info in files.get_file_info(FileSelector(path, allow_not_found=True))}


def _is_state(name: str) -> bool:
    """Whether Tune unpickles the file of this name when it goes on with an experiment."""
    return name.startswith("experiment_state") or name.endswith((".pkl", ".pickle"))


def is_started_here(directory: str | Path) -> bool:
    """Whether a directory (or URI) holds this user's signature of its own path."""
    if is_uri(directory):
        return is_signature(_SIGNED, _name(directory), _remote_signature(str(directory)))
    try:
        content = read_json(Path(directory) / SIGNATURE_FILE, _MAX_BYTES)
    except CheckpointError:
        return False
    return is_signature(_SIGNED, _name(directory), content.get("signature"))


def _remote_signature(uri: str) -> object:
    from pyarrow.fs import FileSystem

    files, path = FileSystem.from_uri(uri)
    try:
        with files.open_input_stream(f"{path}/{SIGNATURE_FILE}") as file:
            content = parse(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return None
    return content.get("signature") if isinstance(content, dict) else None


def _name(directory: str | Path) -> str:
    """What is signed: a URI as it is, or the path without links."""
    return str(directory).rstrip("/") if is_uri(directory) else str(expanded(directory).resolve())


def _below(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory):
        yield from (Path(folder) / name for name in (*folders, *files))


def _is_open_to_others(path: Path) -> bool:
    """Whether somebody else owns a file or directory, or everybody can write it, or it stands for another one."""
    try:
        status = path.lstat()
    except FileNotFoundError:  # A run that goes on meanwhile removed it.
        return False
    return status.st_uid != os.getuid() or bool(status.st_mode & stat.S_IWOTH) or stat.S_ISLNK(status.st_mode)
