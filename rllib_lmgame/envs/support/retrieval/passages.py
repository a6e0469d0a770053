"""Passages: what a search finds, how files write them, and a file of millions of them that stays on disk."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.downloads.places import path_of
from rllib_lmgame.envs.support.datasets import UNREADABLE, check_fields, open_data, readable


@dataclass(frozen=True)
class Passage:
    """One result of a search."""

    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text as wiki-18 and E5's index have them: the title in quotes on a line of its own."""
        return f'"{self.title}"\n{self.text}' if self.title else self.text


def passage_of(record: Mapping[str, Any], key: str, where: str) -> Passage:
    """The passage of a record with ``title`` and ``text``, or with ``contents``, of which a first line of several is
    the title.

    Raises:
        ConfigError: it has neither, or no text; ``key`` and ``where`` are for the message.
    """
    if "contents" in record and "text" not in record:
        check_fields(record, {"contents": str}, key, where)
        before, line_end, after = record["contents"].strip().partition("\n")
        title, text = (before.strip().strip('"'), after) if line_end else ("", before)
    else:
        check_fields(record, {"title": str, "text": str}, key, where)
        title, text = record["title"], record["text"]
    passage = Passage(readable(title.strip()), readable(text.strip()))
    if not passage.title and not passage.text:
        raise ConfigError(key, f"{where}: the passage has no text")
    return passage


class PassageFile(Sequence[Passage]):
    """The passages of a JSON lines file, read from disk one by one.

    Where each line begins is all that is kept, 8 bytes a passage, mapped from ``FILE.lines.npy``. That file is made
    when there is none for the corpus as it is now; all its lines are then checked. Safe to use from several threads.

    Args:
        path: The corpus. Of one that is packed (``.gz``) the unpacked file beside it is read.
        key: Option that named it, for messages.

    Raises:
        ConfigError: for a file that cannot be used; the message names file and line.
    """

    def __init__(self, path: str | Path, key: str) -> None:
        whole = path_of(path, key)
        if whole.suffix == ".gz" and not whole.with_suffix("").is_file():
            raise ConfigError(key, f"passages are read from their places in the file: unpack it, gunzip -k {whole}")
        self.path, self._key = whole.with_suffix("") if whole.suffix == ".gz" else whole, key
        with open_data(self.path, key) as stream:
            file: Any = stream.buffer  # type: ignore[attr-defined]
            status = os.fstat(file.fileno())
            self._size = status.st_size
            places = _Places(Path(f"{file.name}.lines.npy"), (self._size, status.st_mtime_ns))
            kept = places.kept()
            self._starts = places.keep(self._scan(file)) if kept is None else kept
            self._file = open(file.name, "rb")  # noqa: SIM115 - closed with the object

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: Any) -> Any:
        """The passage of a row, counted from 0."""
        record, where = self.record(row)
        return passage_of(record, self._key, where)

    def record(self, row: int) -> tuple[dict[str, Any], str]:
        """What the line of a passage says, and its place in words.

        Raises:
            ConfigError: the file is another one than when it was opened.
        """
        row = range(len(self))[row]
        start = int(self._starts[row])
        end = int(self._starts[row + 1]) if row + 1 < len(self) else self._size
        where = f"{self.path}, passage {row + 1}"
        return self._parsed(os.pread(self._file.fileno(), end - start, start), where), where

    def _parsed(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            record = json_files.parse(line)
        except ValueError as error:
            raise ConfigError(self._key, f"{where}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise ConfigError(self._key, f"{where}: expected a JSON object, got {type(record).__name__}")
        return record

    def _scan(self, file: IO[bytes]) -> array[int]:
        starts, place = array("Q"), 0
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{self.path}, line {number}"
                passage_of(self._parsed(line, where), self._key, where)
                starts.append(place)
            place += len(line)
        if not starts:
            raise ConfigError(self._key, f"{self.path} is empty")
        return starts


class _Places:
    """A file of numbers beside a corpus: its size and time of change, then where each passage begins."""

    def __init__(self, path: Path, stamp: tuple[int, int]) -> None:
        self._path, self._stamp = path, stamp

    def kept(self) -> np.ndarray | None:
        """The places, mapped, uint64 ``[passages]``; ``None`` if there are none for the corpus as it is."""
        try:
            numbers = np.load(self._path, mmap_mode="r")
        except (*UNREADABLE, ValueError):
            return None
        if not isinstance(numbers, np.ndarray) or numbers.ndim != 1 or numbers.dtype != np.uint64 or len(numbers) < 3:
            return None
        return numbers[2:] if tuple(numbers[:2].tolist()) == self._stamp else None

    def keep(self, starts: array[int]) -> np.ndarray:
        """Write the places in one step, where that can be done."""
        numbers = np.concatenate([np.array(self._stamp, np.uint64), np.frombuffer(starts, np.uint64)])
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            with contextlib.suppress(OSError):  # They are counted again next time.
                with scratch.open("wb") as file:
                    np.save(file, numbers)
                scratch.replace(self._path)
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
        mapped = self.kept()
        return numbers[2:] if mapped is None else mapped


def chunks(passages: Sequence[Passage], size: int) -> Iterator[list[Passage]]:
    """The passages, ``size`` at a time."""
    for start in range(0, len(passages), size):
        yield [passages[row] for row in range(start, min(start + size, len(passages)))]
