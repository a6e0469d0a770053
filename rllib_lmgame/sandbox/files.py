"""A directory that a player may use, and nothing outside it.

A path is walked one part at a time from the directory's descriptor (``openat`` with ``O_NOFOLLOW``). So neither ``..``
nor a symbolic link leads out of it, whenever it was made.
"""

from __future__ import annotations

import os
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MAX_FILE_BYTES = 65_536
MAX_FILES = 64
MAX_DEPTH = 5
MAX_NAME = 64


class FileProblem(Exception):
    """A problem with a path or file; the player reads the message."""


class ScopedDirectory:
    """Reading, writing and listing below ``root``; ``None`` makes a temporary directory that goes with this object.

    ``max_file_bytes`` bounds a file, ``max_files`` the files and directories in all.
    """

    def __init__(
        self, root: str | None = None, max_file_bytes: int = MAX_FILE_BYTES, max_files: int = MAX_FILES
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="rllib-lmgame-files-") if root is None else None
        self._root = os.open(root or self._temporary.name, os.O_RDONLY | os.O_DIRECTORY)  # type: ignore[union-attr]
        self._max_file_bytes, self._max_files = max_file_bytes, max_files
        self._close = weakref.finalize(self, _release, self._root, self._temporary)

    def close(self) -> None:
        """Give it back; a temporary directory is removed."""
        self._close()

    def read(self, path: str) -> str:
        """Content of a file. Raises: FileProblem: if there is no such file here, or it is too long."""
        with self._parent(path) as (folder, name), _explained(path):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with open(descriptor, "rb") as file:
                self._check_regular(descriptor, path)
                data = file.read(self._max_file_bytes + 1)
        if len(data) > self._max_file_bytes:
            raise FileProblem(f"{path!r} is longer than {self._max_file_bytes} bytes.")
        return data.decode("utf-8", "replace")

    def write(self, path: str, content: str) -> None:
        """Write a file and its directories. Raises: FileProblem: the path leads elsewhere, or the file is too long."""
        data = content.encode("utf-8", "replace")
        if len(data) > self._max_file_bytes:
            raise FileProblem(f"a file may hold {self._max_file_bytes} bytes at most.")
        if len(self.paths()) + path.count("/") >= self._max_files:
            raise FileProblem(f"there may be {self._max_files} files at most.")
        with self._parent(path, create=True) as (folder, name), _explained(path):
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=folder)
            with open(descriptor, "wb") as file:
                self._check_regular(descriptor, path)
                os.ftruncate(descriptor, 0)
                file.write(data)

    def paths(self) -> list[str]:
        """Sorted paths of all files, directories with a closing slash; links are shown as names only."""
        found: list[str] = []
        self._walk(self._root, "", found, 0)
        return sorted(found)

    def _walk(self, folder: int, prefix: str, found: list[str], depth: int) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) > 2 * self._max_files:
                    return
                if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                    found.append(f"{prefix}{entry.name}/")
                    inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                    try:
                        self._walk(inner, f"{prefix}{entry.name}/", found, depth + 1)
                    finally:
                        os.close(inner)
                else:
                    found.append(f"{prefix}{entry.name}")

    def _check_regular(self, descriptor: int, path: str) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise FileProblem(f"{path!r} is not an ordinary file.")

    @contextmanager
    def _parent(self, path: str, create: bool = False) -> Iterator[tuple[int, str]]:
        """Descriptor of the directory a path lies in, and the last name."""
        *folders, name = _components(path)
        current = os.dup(self._root)
        try:
            for folder in folders:
                with _explained(path):
                    if create:
                        with suppress(FileExistsError):
                            os.mkdir(folder, 0o700, dir_fd=current)
                    following = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
                os.close(current)
                current = following
            yield current, name
        finally:
            os.close(current)


def _components(path: str) -> list[str]:
    """Names on a path. Raises: FileProblem: for an absolute path, ``..``, and names no file should have."""
    if path.startswith("/"):
        raise FileProblem(f"{path[:MAX_NAME]!r} is absolute; give a path inside the working directory.")
    names = path.split("/")
    while len(names) > 1 and names[0] == ".":
        names = names[1:]
    if len(names) > MAX_DEPTH:
        raise FileProblem(f"a path may have {MAX_DEPTH} parts at most.")
    for name in names:
        if name == "..":
            raise FileProblem("'..' is not allowed; give a path inside the working directory.")
        if not name or name == "." or len(name) > MAX_NAME or not name.isprintable() or not name.isascii():
            raise FileProblem(f"{path[:MAX_NAME]!r} is no path of plain names joined by '/'.")
    return names


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """System errors in the player's words, without paths of the machine."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileProblem(f"there is no file {path!r}.") from error
    except OSError as error:
        raise FileProblem(f"{path!r} cannot be used: it is a link, a directory or no ordinary file.") from error


def _release(descriptor: int, temporary: tempfile.TemporaryDirectory[str] | None) -> None:
    os.close(descriptor)
    if temporary is not None:
        temporary.cleanup()
