"""Reading one very large JSON array or object record by record, without holding it whole.

Published catalogues are single JSON documents of several gigabytes; only one record of them is in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.downloads.places import path_of
from rllib_lmgame.envs.support.datasets import UNREADABLE, check_fields, numbered_jsonl, open_data
from rllib_lmgame.envs.support.parquet import is_table, stream_table

CHUNK = 1 << 18
LONGEST_RECORD = 1 << 25
"""Characters after which a record that does not end is called broken."""


def stream_records(
    path: str | Path, fields: Mapping[str, type | tuple[type, ...]], key: str = "env_config.data"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Records of a file that holds one JSON array of objects, one object per line, or a table, each with its place in
    words.

    Args:
        path: The file, ``.parquet``, ``.gz`` or plain; what it begins with tells which form of JSON it has.
        fields: Fields every record must have, with their types.
        key: Option that named the file, for messages.

    Raises:
        ConfigError: for a file that cannot be read, or a record that is none; the message names the file and the record
            or line.
    """
    if is_table(file := path_of(path, key)):
        for where, record in stream_table(file, key):
            check_fields(record, fields, key, where)
            yield where, record
        return
    if not _begins_with(path, "[", key):
        yield from numbered_jsonl(path, fields, key)
        return
    for where, record in stream_array(path, key):
        if not isinstance(record, dict):
            raise ConfigError(key, f"{where}: expected a JSON object, got {type(record).__name__}")
        check_fields(record, fields, key, where)
        yield where, record


def _begins_with(path: str | Path, character: str, key: str) -> bool:
    with open_data(path, key) as stream:
        return _Reader(stream, str(path), key).begins_with(character)


def stream_array(path: str | Path, key: str = "env_config.data") -> Iterator[tuple[str, Any]]:
    """Records of a file that holds one JSON array, each with its place in words (``file, record 3``).

    Raises:
        ConfigError: for a file that cannot be read, holds something else, or is broken; the message
            names file and record.
    """
    with open_data(path, key) as stream:
        reader = _Reader(stream, str(path), key)
        reader.expect("[", "a JSON array")
        while not reader.closed("]"):
            yield reader.where, reader.value()


def stream_object(path: str | Path, key: str = "env_config.data") -> Iterator[tuple[str, str, Any]]:
    """Entries of a file that holds one JSON object: place in words, name and value.

    Raises:
        ConfigError: as :func:`stream_array`.
    """
    with open_data(path, key) as stream:
        reader = _Reader(stream, str(path), key)
        reader.expect("{", "a JSON object")
        while not reader.closed("}"):
            name = reader.value()
            if not isinstance(name, str):
                raise reader.broken("its name is not text")
            reader.expect(":", "a colon")
            yield reader.where, name, reader.value()


class _Reader:
    """A window on the text that moves on record by record."""

    def __init__(self, stream: IO[str], path: str, key: str) -> None:
        self._stream, self._path, self._key = stream, path, key
        self._decoder = json.JSONDecoder()
        self._buffer, self._at = "", 0
        self._record = 0
        self._ended = False

    @property
    def where(self) -> str:
        return f"{self._path}, record {self._record}"

    def broken(self, why: str) -> ConfigError:
        return ConfigError(self._key, f"{self.where}: {why}")

    def begins_with(self, character: str) -> bool:
        """Whether this is what comes next."""
        return self._next() == character

    def expect(self, character: str, what: str) -> None:
        """Step over ``character``."""
        if self._next() != character:
            raise self.broken(
                f"expected {what}, found {self._next()!r}" if self._next() else f"the file ends where {what} should be"
            )
        self._at += 1

    def closed(self, bracket: str) -> bool:
        """Whether the document ends here; steps over the comma if it does not, and counts the record."""
        self._record += 1
        character = self._next()
        if character == bracket:
            self._at += 1
            if self._next():
                raise self.broken(
                    "there is more text after the end of the document; give a file with one JSON document (JSON "
                    "lines are another form)"
                )
            return True
        if self._record > 1:
            self.expect(",", f"a comma or {bracket}")
        return False

    def value(self) -> Any:
        """The JSON value that begins here."""
        self._next()
        step = CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                readable = isinstance(error, json.JSONDecodeError | RecursionError)  # with more of the text
                if self._ended or not readable or len(self._buffer) - self._at > LONGEST_RECORD:
                    raise self.broken(f"not JSON ({self._fault(error)})") from error
                self._fill(step)
                step *= 2
                continue
            if end == len(self._buffer) and not self._ended:  # A number might go on.
                self._fill(step)
                continue
            self._at = end
            return value

    def _fault(self, error: ValueError | RecursionError) -> str:
        if isinstance(error, RecursionError):
            return "nested too deeply"
        if not isinstance(error, json.JSONDecodeError):
            return str(error)  # a number of thousands of digits
        if self._ended and (error.msg.startswith("Unterminated") or error.pos >= len(self._buffer.rstrip())):
            return "the file ends within it"
        return f"{error.msg.removesuffix(' at')} at character {error.pos - self._at + 1} of the record"

    def _next(self) -> str:
        """The next character that is no white space, without stepping over it; empty at the end of the file."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in " \t\r\n\ufeff":
                self._at += 1
            if self._at < len(self._buffer) or self._ended:
                return self._buffer[self._at : self._at + 1]
            self._fill(CHUNK)

    def _fill(self, size: int) -> None:
        try:
            more = self._stream.read(size)
        except UNREADABLE as error:
            raise self.broken(f"no UTF-8 text (or a broken .gz): {error}") from error
        self._ended = not more
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
