"""One process at a time in a directory that it writes to.

The lock is the kernel's (``flock``): it goes with the process that holds it, however that ends. The content of the file
only says who holds it. Remote storage (``s3://...``) has no such locks; there nothing is checked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from io import RawIOBase
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.storage import is_uri

LOCK_FILE = ".running"


@contextmanager
def locked(directory: str | Path, key: str, taken: str, hint: str) -> Iterator[None]:
    """Hold the lock of a directory while inside; a directory that was made for it and got nothing else goes with it.

    Args:
        key: Option that named the directory, for the error.
        taken: What the error says if another process holds it; that process follows in brackets.
        hint: What is to be done.

    Raises: ConfigError: another process, which it names, holds it; OSError: it cannot be made.
    """
    if is_uri(directory):
        yield
        return
    path = Path(directory) / LOCK_FILE
    made = not path.parent.exists()
    try:
        file = _taken(path)
    except BlockingIOError:
        raise ConfigError(key, f"{taken} ({_holder(path)}); {hint}") from None
    with file:
        with contextlib.suppress(OSError):  # a full disk
            file.truncate(0)
            since = datetime.now().isoformat(" ", "seconds")
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode())
        try:
            yield
        finally:
            file.truncate(0)
            if made:
                _remove_if_alone(path)


def _taken(path: Path) -> RawIOBase:
    """The lock's file, locked where the file system can. Raises: BlockingIOError: another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError:  # a file system without locks
        pass
    return file


def _remove_if_alone(lock: Path) -> None:
    with contextlib.suppress(OSError):  # Another run has just come, or somebody removed it.
        if [path.name for path in lock.parent.iterdir()] == [lock.name]:
            lock.unlink()
            lock.parent.rmdir()


def is_running(directory: Path) -> bool:
    """Whether a living process holds the lock of an experiment's directory."""
    try:
        with (directory / LOCK_FILE).open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a file system without locks
        return False
    return False


def _holder(path: Path) -> str:
    try:
        content = parse(path.read_text(encoding="utf-8"))
        return f"process {content['pid']} on {content['host']}, since {content['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it has only just started"
