"""Files that a run carries along, unpacked once per machine into the directory for temporary files.

A process locks what it unpacks or finds unpacked, for as long as it lives. What nobody has locked is removed when a
process unpacks something or ends in good order, and by :func:`remove_unused` at the end of a command. So runs never
take files from each other, and a killed run's are gone after the next run.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

_locks: dict[Path, int] = {}
"""Directories this process uses -> file descriptor that holds the lock."""


def unpack(files: Sequence[tuple[str, bytes]], name: str) -> Path:
    """Directory ``name`` on this machine with these files; this process keeps it until it ends."""
    parent = _parent()
    with _alone(parent):
        target = parent / name
        if target.is_dir():
            _keep(target)
        _remove_unlocked(parent)
        if not _is_whole(target, files):
            scratch = Path(tempfile.mkdtemp(dir=parent))
            for file, content in files:
                (scratch / file).write_bytes(content)
            target.mkdir(exist_ok=True, mode=0o700)
            for file, _ in files:  # Each file is whole or missing, also for who reads the directory just now.
                os.replace(scratch / file, target / file)
            scratch.rmdir()
        _keep(target)
    return target


def remove_unused() -> None:
    """Remove what no living process uses, on this machine."""
    parent = _parent()
    with _alone(parent):
        _remove_unlocked(parent)


def _remove_unlocked(parent: Path) -> None:
    for path in parent.iterdir():
        if not _is_locked(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _keep(directory: Path) -> None:
    """Lock for the life of this process; again if the directory is not the one it was."""
    if not _locks:
        atexit.register(_let_go)
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    before = _locks.get(directory)
    _locks[directory] = descriptor
    if before is not None:
        os.close(before)


def _let_go() -> None:
    """Release the locks of this process and remove unused directories."""
    while _locks:
        os.close(_locks.popitem()[1])
    with suppress(OSError):
        remove_unused()


@contextmanager
def _alone(parent: Path) -> Iterator[None]:
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_whole(target: Path, files: Sequence[tuple[str, bytes]]) -> bool:
    paths = ((target / name, content) for name, content in files)
    return all(path.is_file() and path.stat().st_size == len(content) for path, content in paths)


def _parent() -> Path:
    path = Path(tempfile.gettempdir()) / f"rllib_lmgame-{os.getuid()}"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path if path.stat().st_uid == os.getuid() else _private(path)


@lru_cache
def _private(path: Path) -> Path:
    """A private directory, used if another user owns the shared one and could replace its files."""
    own = tempfile.mkdtemp(prefix=path.name)
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)
