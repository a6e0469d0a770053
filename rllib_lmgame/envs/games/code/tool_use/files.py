"""The files of an episode, which are held in memory."""

from __future__ import annotations

from pathlib import PurePosixPath

MAX_FILE_BYTES = 65_536
MAX_FILES = 64
MAX_DEPTH = 5
MAX_NAME = 64


class FileProblem(Exception):
    """A problem with a path or file; the player reads the message."""


class Files:
    """Reads, writes and lists files by paths of names joined by ``/``."""

    def __init__(self) -> None:
        self._content: dict[PurePosixPath, str] = {}

    def read(self, path: str) -> str:
        """Content of a file. Raises: FileProblem: if there is none."""
        found = _checked(path)
        if found not in self._content:
            raise FileProblem(f"there is no file {path!r}.")
        return self._content[found]

    def write(self, path: str, content: str) -> None:
        """Write a file and its directories. Raises: FileProblem: it is too long, one too many, or a directory."""
        found = _checked(path)
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_FILE_BYTES:
            raise FileProblem(f"a file may hold {MAX_FILE_BYTES} bytes at most.")
        if found not in self._content and len(self._content) >= MAX_FILES:
            raise FileProblem(f"there may be {MAX_FILES} files at most.")
        if found in self._folders() or not self._content.keys().isdisjoint(found.parents):
            raise FileProblem(f"{path!r} cannot be used: a directory is no file, and a file no directory.")
        self._content[found] = data.decode()

    def paths(self) -> list[str]:
        """Sorted paths of all files, and of directories with a closing slash."""
        return sorted([*map(str, self._content), *(f"{folder}/" for folder in self._folders())])

    def _folders(self) -> set[PurePosixPath]:
        return {folder for path in self._content for folder in path.parents if folder.parts}


def _checked(path: str) -> PurePosixPath:
    """Raises: FileProblem: for an absolute path, ``..``, and names no file should have."""
    if path.startswith("/"):
        raise FileProblem(f"{path[:MAX_NAME]!r} is absolute; give a path inside the working directory.")
    names = path.removeprefix("./").split("/")
    if len(names) > MAX_DEPTH:
        raise FileProblem(f"a path may have {MAX_DEPTH} parts at most.")
    for name in names:
        if name == "..":
            raise FileProblem("'..' is not allowed; give a path inside the working directory.")
        if not name or name == "." or len(name) > MAX_NAME or not name.isprintable() or not name.isascii():
            raise FileProblem(f"{path[:MAX_NAME]!r} is no path of plain names joined by '/'.")
    return PurePosixPath(*names)
