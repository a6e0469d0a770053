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
from pathlib import Path

_locks: dict[Path, int] = {}
"""Directories this process uses -> file descriptor that holds the lock."""


def unpack(files: Sequence[tuple[str, bytes]], name: str) -> Path:
    """Directory ``name`` on this machine with these files; this process keeps it until it ends."""
    with _alone() as parent:
        target = parent / name
        target.mkdir(exist_ok=True, mode=0o700)
        _keep(target)
        _remove_unlocked(parent)
        for file, content in files:
            path = target / file
            if not path.is_file() or path.stat().st_size != len(content):
                scratch = parent / f"{name}.{file}"
                scratch.write_bytes(content)
                os.replace(scratch, path)  # Whole or missing, also for who reads the directory just now.
    return target


def remove_unused() -> None:
    """Remove what no living process uses, on this machine."""
    with _alone() as parent:
        _remove_unlocked(parent)


def _remove_unlocked(parent: Path) -> None:
    for path in filter(Path.is_dir, parent.iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


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
def _alone() -> Iterator[Path]:
    """The directory of this user's files, for one process at a time. Raises: PermissionError: it is another user's."""
    parent = Path(tempfile.gettempdir()) / f"rllib_lmgame-{os.getuid()}"
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to another user, who could replace its files; set TMPDIR")
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield parent
    finally:
        os.close(descriptor)
