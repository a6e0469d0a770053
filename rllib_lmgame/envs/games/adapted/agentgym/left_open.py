"""Which sessions a process has open, so that another process can close them after it was killed.

Each process has a file with a line for each session that was opened or closed, locked by the kernel as long as the
process lives. A file that is not locked is of a process that has died. Machines share nothing: sessions are closed by
the next process on the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
import threading
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from rllib_lmgame.base import json_files

Closing = tuple[str, dict[str, Any]]
"""What closes a session: the address, and the body that is posted there."""

MOST_READ = 10_000_000
"""Bytes of a file of another process."""


def directory() -> Path:
    """Where the files lie: of this user alone."""
    return Path(tempfile.gettempdir()) / f"rllib_lmgame_agentgym_{os.getuid()}"


class LeftOpen:
    """The sessions of this process, safe to use from several threads.

    Where no file can be written, only those of a process that ends by itself are closed.
    """

    def __init__(self) -> None:
        self._open: dict[str, Closing] = {}
        self._file: FileIO | None = None
        self._path: Path | None = None
        self._lock = threading.Lock()

    def add(self, url: str, body: Mapping[str, Any]) -> None:
        """A session is open."""
        self._note(url, dict(body), open_now=True)

    def remove(self, url: str, body: Mapping[str, Any]) -> bool:
        """It is closed; whether it was open."""
        return self._note(url, dict(body), open_now=False)

    def forget(self, url: str) -> None:
        """All that ``url`` closes are gone."""
        for address, body in self.remaining():
            if address == url:
                self.remove(address, body)

    def remaining(self) -> list[Closing]:
        """Sessions that are open."""
        with self._lock:
            return list(self._open.values())

    def take_over(self) -> list[Closing]:
        """Sessions that processes which are no more left open. They are nobody else's from here on.

        Not those called as one that a living process has open: the server was started anew, and counts anew.
        """
        left: dict[str, Closing] = {}
        alive = {_key(*each) for each in self.remaining()}
        for path in _files():
            with contextlib.suppress(OSError):  # Another process has taken it over meanwhile.
                if path != self._path:
                    sessions, has_ended = _read(path)
                    left |= sessions if has_ended else {}
                    alive |= set() if has_ended else sessions.keys()
        return [each for key, each in left.items() if key not in alive]

    def end(self) -> None:
        """The process has closed what it could."""
        with self._lock, contextlib.suppress(OSError):
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            if self._file is not None:
                self._file.close()

    def abandon(self) -> None:
        """In a forked child: the file is its parent's."""
        if self._file is not None:
            self._file.close()

    def _note(self, url: str, body: dict[str, Any], *, open_now: bool) -> bool:
        key = _key(url, body)
        with self._lock:
            was_open = self._open.pop(key, None) is not None
            if open_now:
                self._open[key] = (url, body)
            with contextlib.suppress(OSError):
                if self._file is None:
                    self._begin()
                else:
                    self._file.write(_line(url, body, open_now))
            return was_open

    def _begin(self) -> None:
        """Make the file, with all that is open."""
        folder = directory()
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_own(folder):
            return
        path = folder / f"{os.getpid()}-{os.urandom(4).hex()}.jsonl"
        file = path.open("ab", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Another process may have taken it for one of the dead.
        except OSError:
            file.close()
            raise
        self._file, self._path = file, path
        for url, body in self._open.values():
            file.write(_line(url, body, open_now=True))


def _files() -> list[Path]:
    """Those of all processes of this user."""
    try:
        return sorted(directory().glob("*.jsonl")) if _is_own(directory()) else []
    except OSError:
        return []


def _is_own(folder: Path) -> bool:
    """Whether the folder is this user's: somebody else's could name any address."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _key(url: str, body: Mapping[str, Any]) -> str:
    return json.dumps([url, body], sort_keys=True)


def _line(url: str, body: Mapping[str, Any], open_now: bool) -> bytes:
    return json.dumps({"open": open_now, "url": url, "body": body}).encode() + b"\n"


def _read(path: Path) -> tuple[dict[str, Closing], bool]:
    """The sessions that a file says are open, and whether its process is no more; then the file goes."""
    left: dict[str, Closing] = {}
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            has_ended = True
        except OSError:
            has_ended = False
        for line in file.read(MOST_READ).splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # The last line may be cut short.
                entry = json_files.parse(line)
                key = _key(entry["url"], entry["body"])
                left.pop(key, None)
                if entry["open"]:
                    left[key] = (str(entry["url"]), dict(entry["body"]))
        if has_ended:
            path.unlink(missing_ok=True)
    return left, has_ended
