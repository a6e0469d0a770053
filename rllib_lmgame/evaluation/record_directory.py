"""A directory of episodes that are written down as they end, and of the settings they were played with.

1. An episode stands in its file whole or not at all; half a line, left by a full disk or a kill, is cut off later.
2. A second process is refused, and what was played with other settings.
3. Nothing outside it is written: a directory that holds a link is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import read_mapping, write_json
from rllib_lmgame.base.lock import locked
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.rollouts.log.episode_log import EpisodeLog, numbered_records

FAILURES_FILE = "failures.jsonl"
MAX_SETTINGS_BYTES = 4_000_000


class RecordDirectory:
    what: ClassVar[str]
    """What is played in it, as errors call it."""
    settings_file: ClassVar[str]
    records_file: ClassVar[str]

    def __init__(self, path: str | Path) -> None:
        self.path = expanded(path)
        self._records = EpisodeLog(self.path / self.records_file)
        self._failures = EpisodeLog(self.path / FAILURES_FILE)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out while inside.

        Raises: ConfigError: if another is in, or the directory holds a link or anything else but plain files.
        """
        for entry in self.path.iterdir():
            if entry.is_symlink() or not entry.is_file():
                raise ConfigError(
                    "--out", f"{entry} is a link or no file; the directory of a {self.what} holds files alone"
                )
        taken = f"another process plays the {self.what} in {self.path}"
        with locked(self.path, "--out", taken, "name another directory, or wait for its end"):
            yield

    def settings(self) -> dict[str, Any] | None:
        """What was played there, ``None`` if nothing was. Raises: ConfigError: something else is there."""
        file = self.path / self.settings_file
        if not file.exists():
            if (self.path / self.records_file).exists():
                missing = f"{self.path} holds {self.records_file}, but no {self.settings_file}; name another one"
                raise ConfigError("--out", missing)
            return None
        try:
            return read_mapping(file, MAX_SETTINGS_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError("--out", str(error)) from None

    def refuse(self, different: str | None) -> None:
        """Raise :class:`ConfigError` if something is ``different``."""
        if different is not None:
            raise ConfigError("--out", f"{self.path} holds another {self.what}: {different}; name another directory")

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begin or go on with what has these settings; the directory is now taken."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / FAILURES_FILE).unlink()
        if self.settings() != plain(settings):
            write_json(self.path / self.settings_file, settings, indent=1)

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every episode that was played, with the place where it is written; half a line at the end is cut off.

        Raises: ConfigError: a line is no record.
        """
        path = self.path / self.records_file
        if path.exists():
            _cut_after_last_line(path)
            for number, record in numbered_records(path):
                yield f"{path}, line {number}", record

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the record of a played game. Raises: OSError: if it could not be written."""
        self._records.write([dict(record)])

    def add_failure(self, failure: Mapping[str, Any]) -> None:
        self._failures.write([dict(failure)])


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    read: dict[str, Any] = json.loads(json.dumps(settings))
    return read


def _cut_after_last_line(path: Path) -> None:
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            position = file.read(end - start).rfind(b"\n")
            if position >= 0:
                end = start + position + 1
                break
            end = start
        if end < size:
            file.truncate(end)


def difference(there: Any, wanted: Any, where: str = "") -> str | None:
    """The first thing in which two values of plain data differ, in words; ``None`` if they are the same."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in there if key not in wanted)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in there:
                return f"{place} was not given, now it is"
            if key not in wanted:
                return f"{place} was given, now it is not"
            found = difference(there[key], wanted[key], place)
            if found is not None:
                return found
        return None
    return None if there == wanted else f"{where} was {there!r}, now it is {wanted!r}"
