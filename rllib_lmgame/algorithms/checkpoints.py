"""Checkpoints that are whole or not there: a manifest of sizes and hashes, written last and verified first."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from rllib_lmgame.errors import CheckpointError

MANIFEST = "manifest.json"
HF_DIRECTORY = "hf"
MILESTONES_FILE = "milestones.json"
_BLOCK = 1 << 20


def file_hash(path: Path) -> str:
    """blake2b of a file's content."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(directory: Path) -> None:
    """Record every file below ``directory``."""
    files = {
        str(path.relative_to(directory)): {"bytes": path.stat().st_size, "blake2b": file_hash(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    content = json.dumps({"format": 1, "files": files, "digest": _table_digest(files)}, indent=1)
    scratch = directory / (MANIFEST + ".tmp")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(directory / MANIFEST)


def _table_digest(files: dict[str, dict[str, object]]) -> str:
    """Hash of the manifest's own table."""
    return hashlib.blake2b(json.dumps(files, sort_keys=True).encode(), digest_size=16).hexdigest()


def verify_manifest(directory: Path) -> None:
    """Check every recorded file.

    Raises:
        CheckpointError: naming the first file that is missing, truncated or altered, and an earlier checkpoint that is whole.
    """
    problem = manifest_problem(directory)
    if problem is None:
        return
    earlier = previous_checkpoint(directory)
    offer = f"; the checkpoint before it is whole: {earlier}" if earlier else ""
    raise CheckpointError(f"{problem}{offer}")


def manifest_problem(directory: Path) -> str | None:
    """What is wrong with the checkpoint in ``directory``, or ``None``."""
    manifest = directory / MANIFEST
    if not directory.is_dir():
        return f"no such checkpoint: {directory}"
    if not manifest.is_file():
        return f"{directory} is not a complete checkpoint: {MANIFEST} is missing"
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        files = content["files"]
        if content["digest"] != _table_digest(files):
            return f"{manifest} has been altered"
    except (ValueError, KeyError, TypeError):
        return f"{manifest} is damaged"
    for name, expected in files.items():
        path = directory / name
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size < expected["bytes"]:
            return f"{path} is truncated: {path.stat().st_size} bytes instead of {expected['bytes']}"
        if file_hash(path) != expected["blake2b"]:
            return f"{path} has been altered"
    return None


def previous_checkpoint(directory: Path) -> Path | None:
    """The newest whole checkpoint beside ``directory`` that is older than it."""
    if not directory.parent.is_dir():
        return None
    own = _natural(directory)
    older = sorted(
        (p for p in directory.parent.iterdir() if p.is_dir() and p.name.startswith("checkpoint") and _natural(p) < own),
        key=_natural,
        reverse=True,
    )
    return next((path for path in older if manifest_problem(path) is None), None)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key in which ``checkpoint_9`` comes before ``checkpoint_10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def move_into(scratch: Path, target: Path) -> None:
    """Move the content of ``scratch`` into ``target``, the manifest last, so that a reader never sees a checkpoint that looks whole and is not."""
    target.mkdir(exist_ok=True)
    (target / MANIFEST).unlink(missing_ok=True)
    entries = sorted(scratch.iterdir(), key=lambda path: path.name == MANIFEST)
    for entry in entries:
        destination = target / entry.name
        if destination.is_dir():
            shutil.rmtree(destination)
        elif destination.exists():
            destination.unlink()
        os.replace(entry, destination)


def hf_directory(checkpoint: Path, module_id: str, policies: list[str]) -> Path:
    """Where a policy's Hugging Face files stand in a checkpoint: ``hf/`` itself if there is one trained policy."""
    return checkpoint / HF_DIRECTORY if len(policies) == 1 else checkpoint / HF_DIRECTORY / module_id
