"""Checkpoints that are whole or not there: a manifest of sizes and hashes, written last and verified first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.json_files import read_mapping, write_json
from rllib_lmgame.policies.model.files import ADAPTER_DIRECTORY, HF_DIRECTORY

MANIFEST = "manifest.json"
MILESTONES_FILE = "milestones.json"
REPORT_FILE = "report.json"
"""What the learning report writes into a trial's directory."""
ITERATION_FILE = "iteration.json"
TRAINING_ITERATION = "training_iteration"
"""The only key in it, named as in results."""
LAST_DIRECTORY = f"{HF_DIRECTORY}_last"
"""Of the weights in training, beside the averaged ones in ``hf/``."""
LEARNER_SHARDS = "learners"
"""What each learner wrote of itself."""
MAX_ITERATION_BYTES = 1_000
MAX_MANIFEST_BYTES = 64 << 20

FileRecords = Mapping[str, Mapping[str, Any]]
"""Path below a directory -> what a manifest says of the file: ``bytes`` and ``blake2b``."""

_BLOCK = 1 << 20


def file_hash(path: Path) -> str:
    """blake2b of a file's content."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def file_records(directory: Path, known: FileRecords = MappingProxyType({})) -> dict[str, dict[str, Any]]:
    """Records of every file below ``directory``; files in ``known`` are not read again."""
    names = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return {
        name: dict(known[name]) if name in known else {"bytes": path.stat().st_size, "blake2b": file_hash(path)}
        for name, path in names.items()
        if path.name != MANIFEST
    }


def write_manifest(directory: Path, known: FileRecords = MappingProxyType({})) -> None:
    """Record every file below ``directory``; ``known`` as in :func:`file_records`."""
    write_json(directory / MANIFEST, {"format": 1, "files": file_records(directory, known)}, indent=1)


def verify_manifest(directory: Path) -> None:
    """Check every recorded file. Raises: CheckpointError: names the first damaged file."""
    problem = manifest_problem(directory)
    if problem is not None:
        raise CheckpointError(problem)


def manifest_problem(directory: Path) -> str | None:
    """What is wrong with the checkpoint in ``directory``, or ``None``."""
    try:
        for name, recorded in _read_manifest(directory).items():
            problem = _file_problem(directory, name, recorded)
            if problem is not None:
                return problem
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or directory} cannot be read: {error.strerror}"
    return None


def _read_manifest(directory: Path) -> dict[str, dict[str, Any]]:
    manifest = directory / MANIFEST
    if not directory.is_dir():
        raise CheckpointError(f"no such checkpoint: {directory}")
    if not manifest.is_file():
        raise CheckpointError(f"{directory} is not a complete checkpoint: {MANIFEST} is missing")
    content = read_json(manifest, MAX_MANIFEST_BYTES)
    files = content.get("files")
    if not isinstance(files, dict) or not all(isinstance(recorded, dict) for recorded in files.values()):
        raise CheckpointError(f"{manifest} is damaged: it has no table of files")
    if not files:
        raise CheckpointError(f"{manifest} is damaged: it records no file")
    return files


def _file_problem(directory: Path, name: str, recorded: dict[str, Any]) -> str | None:
    """What is wrong with one recorded file, or ``None``. Opens only regular files inside, and follows no links."""
    path = directory / name
    size = recorded.get("bytes")
    if not _is_below(name) or not isinstance(size, int):
        return f"{directory / MANIFEST} is damaged: {name!r} is no file of a checkpoint"
    if any(part.is_symlink() for part in (path, *path.parents[: len(Path(name).parts) - 1])):
        return f"{path} is a link; a checkpoint holds the files themselves"
    if not path.is_file():
        return f"{path} is missing"
    if path.stat().st_size < size:
        return f"{path} is truncated: {path.stat().st_size} bytes instead of {size}"
    if file_hash(path) != recorded.get("blake2b"):
        return f"{path} has been altered"
    return None


def _is_below(name: str) -> bool:
    parts = Path(name).parts
    return bool(parts) and name.isprintable() and not Path(name).is_absolute() and ".." not in parts


def write_iteration(directory: Path, iteration: int) -> None:
    """Note in a checkpoint how many iterations were done when it was written."""
    (directory / ITERATION_FILE).write_text(json.dumps({TRAINING_ITERATION: iteration}), encoding="utf-8")


def iteration_of(directory: Path) -> int | None:
    """Iterations that were done when a checkpoint was written, if it says so."""
    try:
        return int(read_json(directory / ITERATION_FILE, MAX_ITERATION_BYTES)[TRAINING_ITERATION])
    except (CheckpointError, ValueError, OverflowError, KeyError, TypeError):
        return None


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """The mapping in a JSON file. Raises: CheckpointError: if unreadable, above ``max_bytes``, or no mapping."""
    try:
        return read_mapping(path, max_bytes)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def move_into(scratch: Path, target: Path) -> None:
    """Move ``scratch`` into ``target``, the manifest last: a reader never sees a half-written checkpoint as whole.

    An old checkpoint there is removed; files it did not record stay.
    """
    target.mkdir(exist_ok=True)
    former = _recorded_entries(target)
    (target / MANIFEST).unlink(missing_ok=True)
    entries = sorted(scratch.iterdir(), key=lambda path: path.name == MANIFEST)
    for name in former - {entry.name for entry in entries}:
        _remove(target / name)
    for entry in entries:
        _remove(target / entry.name)
        os.replace(entry, target / entry.name)


def _recorded_entries(directory: Path) -> set[str]:
    """Names of the files and directories in ``directory`` that belong to the checkpoint there, if there is one."""
    try:
        files = _read_manifest(directory)
    except CheckpointError:
        return set()
    return {Path(name).parts[0] for name in files if _is_below(name)}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def adapter_directory(checkpoint: Path, module_id: str, policies: list[str], *, last: bool = False) -> Path:
    """A policy's adapters beside :func:`hf_directory`, in PEFT's form."""
    directory = checkpoint / (f"{ADAPTER_DIRECTORY}_last" if last else ADAPTER_DIRECTORY)
    return directory if len(policies) == 1 else directory / module_id


def hf_directory(checkpoint: Path, module_id: str, policies: list[str], *, last: bool = False) -> Path:
    """A policy's Hugging Face files in a checkpoint: ``hf/`` itself if only one policy is trained.

    Args:
        last: The last iterate (``hf_last/``), beside averaged weights.
    """
    directory = checkpoint / (LAST_DIRECTORY if last else HF_DIRECTORY)
    return directory if len(policies) == 1 else directory / module_id
