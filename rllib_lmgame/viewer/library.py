"""The episodes of files, found once and then read where they stand: a log of gigabytes is never held in memory, but
for the packed words of its episodes.

1. Files are read as a stream, from where they were read to: what is written meanwhile is found by the next call.
2. What cannot be read is told and passed over; it costs no other episode.
3. A line that is not yet whole is left for later.
4. What an update knew of an episode's tokens is read with it when it is looked at, and may come later than it.
5. A file that became shorter was written anew: everything is read again, under a new ``generation``.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import first_line, printable
from rllib_lmgame.rollouts.episode_log import TOKENS
from rllib_lmgame.telemetry.trial_names import directory_names
from rllib_lmgame.viewer.forms import episode_of, join_tokens, row_of, words_of

MOST_PROBLEMS = 50
LONGEST_LINE = 2**26
"""Bytes of a line; longer ones are passed over."""
_LOGS = ("episodes/*.jsonl", f"episodes/*{TOKENS}", "games.jsonl", "results.jsonl")
"""What is looked for in a directory, in that order; where nothing is, every ``*.jsonl``."""
_CONVERSATION = {"messages", "prompt", "conversations"}
"""What a file for supervised learning has in place of an episode's steps."""
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


class Place(NamedTuple):
    """Where an episode stands: file, byte, length in bytes, and number of its line."""

    source: int
    start: int
    length: int
    line: int


@dataclass
class Source:
    """A file and how far it has been read."""

    path: Path
    label: str
    read: int = 0
    lines: int = 0

    @property
    def of_tokens(self) -> bool:
        """Whether it holds what updates knew of tokens, and no episodes."""
        return self.path.suffix == TOKENS


@dataclass
class Library:
    """Episodes of ``sources`` (paths with the names they are shown under), in the order in which they were found."""

    sources: list[Source]
    problems: list[str] = field(default_factory=list)
    generation: int = 0
    reading: bool = True
    """Whether there may be more in the files than was read so far."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.places: list[Place] = []
        self.rows: list[bytes] = []
        self._notes: dict[tuple[Path, str], list[Place]] = {}
        self._words: list[bytes] = []
        self.problems.clear()
        for source in self.sources:
            source.read, source.lines = 0, 0

    def add(self, sources: Sequence[Source]) -> None:
        """Further files, those that are known left out."""
        known = {source.path for source in self.sources}
        self.sources += [source for source in sources if source.path not in known]

    def refresh(self) -> Iterator[int]:
        """Read what is new; yields the number of episodes after each."""
        with self._lock:
            self.reading = True
            if any(_size(source.path) < source.read for source in self.sources):
                self._clear()
                self.generation += 1
        for number, source in sorted(enumerate(self.sources), key=lambda each: not each[1].of_tokens):
            try:
                for place, record in self._records(number, source):
                    self._keep(place, record)
                    yield len(self.rows)
            except OSError as error:
                self._tell(f"{source.label} cannot be read: {error.strerror or first_line(error)}")
        self.reading = False

    def records(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """File, line and record of all that stands in the files."""
        for number, source in enumerate(self.sources):
            for place, record in self._records(number, source):
                yield source.label, place.line, dict(record)

    def _keep(self, place: Place, record: Mapping[str, Any]) -> None:
        source = self.sources[place.source]
        if source.of_tokens:
            self._notes.setdefault(self._key(place, str(record.get("episode_id"))), []).append(place)
        elif record.keys() & _CONVERSATION:
            self._tell(f"{source.label}: conversations are not shown; `rllib collect --format log` writes episodes")
        else:
            try:
                episode = episode_of(record)
                row = as_json(row_of(episode, place.source, place.line))
                words = zlib.compress(words_of(episode).lower().encode("utf-8", "replace"), 1)
            except DAMAGED as error:
                self.tell_of(source.label, place.line, error)
                return
            with self._lock:
                self._words.append(words)
                self.places.append(place)
                self.rows.append(row)

    def _key(self, place: Place, episode_id: str) -> tuple[Path, str]:
        return self.sources[place.source].path.parent, episode_id

    def _whole(self, episode: dict[str, Any], place: Place) -> dict[str, Any]:
        """The episode with what updates knew of its tokens."""
        for note in self._notes.get(self._key(place, episode["id"]), ()):
            try:
                join_tokens(episode, self._read(note))
            except DAMAGED as error:
                label = self.sources[note.source].label
                self._tell(f"{label}, line {note.line}: no tokens are read from it ({_said(error)})")
        return episode

    def _read(self, place: Place) -> Any:
        source = self.sources[place.source]
        with source.path.open("rb") as file:
            file.seek(place.start)
            return _parsed(file.read(place.length))

    def tell_of(self, label: str, line: int, error: BaseException) -> None:
        """Note that a record is no episode, or a damaged one."""
        self._tell(f"{label}, line {line}: no episode is read from it ({_said(error)})")

    def _tell(self, problem: str) -> None:
        problem = printable(problem[:500])
        if problem not in self.problems and len(self.problems) <= MOST_PROBLEMS:
            self.problems.append(problem if len(self.problems) < MOST_PROBLEMS else "... and more")

    def _records(self, number: int, source: Source) -> Iterator[tuple[Place, Mapping[str, Any]]]:
        with source.path.open("rb") as file:
            for start, length, record in self._lines(source, file):
                if isinstance(record, Mapping):
                    yield Place(number, start, length, source.lines), record
                else:
                    self._tell(f"{source.label}, line {source.lines}: not a record but {type(record).__name__}")

    def _lines(self, source: Source, file: Any) -> Iterator[tuple[int, int, Any]]:
        file.seek(source.read)
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n"):
                if len(line) < LONGEST_LINE:
                    return
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE)
                source.read, source.lines = file.tell(), source.lines + 1
                self._tell(f"{source.label}, line {source.lines}: passed over, it has more than {LONGEST_LINE:,} bytes")
                continue
            start, source.read, source.lines = source.read, source.read + len(line), source.lines + 1
            if line.strip():
                try:
                    yield start, len(line), _parsed(line)
                except ValueError as error:
                    self._tell(f"{source.label}, line {source.lines}: no JSON ({_said(error)})")

    @property
    def unfinished(self) -> list[str]:
        """Files that end in a line that is not whole, as they do while it is written, or where they were cut off."""
        cut = [(source.label, _size(source.path) - source.read) for source in self.sources]
        return [f"{printable(label)} ends in {more:,} bytes that are no whole line" for label, more in cut if more > 0]

    def news(self, first: int, generation: int) -> tuple[list[bytes], dict[str, Any]]:
        """Rows from the ``first`` on (all, for who knows another ``generation``), and what else there is to say."""
        with self._lock:
            rows = self.rows[first if generation == self.generation else 0 :]
            head = {
                "generation": self.generation,
                "reading": self.reading,
                **self.about(),
                "unfinished": [] if self.reading else self.unfinished,
            }
        return rows, head

    def about(self) -> dict[str, Any]:
        """What is said of the files: their labels, the trial that each is of, and problems."""
        folders = [source.path.parent for source in self.sources]
        trials = [folder.parent.name if folder.name == "episodes" else "" for folder in folders]
        names = directory_names(filter(None, trials))
        return {
            "files": [source.label for source in self.sources],
            "trials": [names.get(trial, "") for trial in trials],
            "problems": list(self.problems),
        }

    def episode(self, number: int) -> dict[str, Any]:
        """An episode as :func:`~.forms.episode_of` has it, read from its file.

        Raises: IndexError: there is none of this number; OSError, ValueError: the file is no longer as it was.
        """
        if number < 0:
            raise IndexError(number)
        place = self.places[number]
        source = self.sources[place.source]
        try:
            episode = episode_of(self._read(place))
            return self._whole(episode, place) | {"file": source.label, "line": place.line}
        except DAMAGED as error:
            raise ValueError(f"{source.label} is no longer as it was ({_said(error)})") from None

    def search(self, text: str) -> list[int]:
        """Numbers of the episodes in which ``text`` was seen or said, upper and lower case alike."""
        needle = text.lower().encode("utf-8", "replace")
        with self._lock:
            words = self._words[:]
        return [number for number, each in enumerate(words) if needle in zlib.decompress(each)]


def sources_of(targets: Sequence[str]) -> list[Source]:
    """The files of ``targets``: logs, and directories of runs, trials, checkpoints, tournaments, evaluations.

    A run that has not written any yet has none. Raises: ConfigError: there is no such file or directory.
    """
    found: dict[Path, str] = {}
    for target in targets:
        path = expanded(target)
        try:
            if path.is_dir():
                root = _with_logs(path)
                files = _logs_of(root)
            elif path.is_file():
                with path.open("rb") as log:
                    if path.suffix != ".jsonl" and log.read(1) not in (b"{", b""):
                        raise ConfigError("", f"{target} is no episode log; name one, or the directory of a run")
                root, files = path.parent, [path, *sorted(path.parent.glob(f"*{TOKENS}"))]
            else:
                raise ConfigError("", f"no such run, checkpoint or episode log: {target}")
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("", f"{target} cannot be read: {first_line(error)}") from None
        for file in files:
            label = file.relative_to(root)
            found.setdefault(file.resolve(), str(Path(root.name, label) if len(targets) > 1 else label))
    return [Source(path, label) for path, label in found.items()]


def _with_logs(path: Path) -> Path:
    """A checkpoint's episodes lie in the directory of its trial."""
    own = (path / "manifest.json").exists() or (path / "lmgame_config.json").exists()
    return path.absolute().parent if own else path


def _logs_of(root: Path) -> list[Path]:
    patterns = [p for log in _LOGS for p in (log, f"*/{log}")]
    found = [file for pattern in patterns for file in sorted(root.glob(pattern)) if file.is_file()]
    known = found or [file for file in sorted(root.glob("**/*.jsonl")) if file.is_file()]
    return [file for file in dict.fromkeys(known) if file.name != "failures.jsonl"]


def with_rows(head: Mapping[str, Any], rows: Sequence[bytes]) -> bytes:
    """``head`` as JSON, with ``rows``, which are JSON already."""
    return as_json({**head, "rows": None}).replace(b'"rows":null', b'"rows":[' + b",".join(rows) + b"]", 1)


def as_json(value: Any) -> bytes:
    """``value`` as JSON; half a surrogate pair, which UTF-8 cannot carry, is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def _parsed(line: bytes) -> Any:
    return parse(line.decode("utf-8-sig", "replace"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
