"""Files of tasks: this package's own lists, and published data sets in the forms they are published in.

A data set is read as a stream, so that a large file costs memory only for what is kept. What is wrong with a file is
said with its name and line.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache, wraps
from importlib import resources
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import one_line
from rllib_lmgame.downloads.places import path_of

Content = TypeVar("Content")
Arguments = ParamSpec("Arguments")

UNREADABLE = (UnicodeDecodeError, EOFError, OSError, zlib.error)
"""What reading a damaged file may raise, plain or ``.gz``."""
LONGEST_CATEGORY = 60
"""Characters of a kind of level that are shown."""


@contextmanager
def open_data(path: str | Path, key: str = "env_config.data") -> Iterator[IO[str]]:
    """A text file (UTF-8, with or without a byte order mark), unpacked on the way if its name ends in ``.gz``.

    Args:
        path: The file, or ``data:NAME:PART`` of a data set that is here.
        key: Option that named it, for messages.

    Raises: ConfigError: if it does not exist or cannot be read to its end.
    """
    file = path_of(path, key)
    try:
        if not file.is_file():
            what = "is a folder" if file.is_dir() else "does not exist"
            raise ConfigError(key, f"{str(file)!r} {what}; give the path of a data file that every node can read")
        content = file.open("rb")
    except OSError as error:
        raise ConfigError(key, f"cannot open {str(file)!r}: {error.strerror or error}") from error
    with content, gzip.open(content) if file.suffix == ".gz" else content as plain:
        try:
            yield io.TextIOWrapper(plain, encoding="utf-8-sig")
        except UNREADABLE as error:
            raise ConfigError(key, f"{path} is no UTF-8 text (or a broken .gz): {error}") from error


def read_jsonl(
    path: str | Path, fields: Mapping[str, type | tuple[type, ...]], key: str = "env_config.data"
) -> Iterator[dict[str, Any]]:
    """Records of a JSONL file (one JSON object per line; blank lines are skipped), one at a time.

    Args:
        path: The file, ``.gz`` or plain.
        fields: Fields every record must have, with their types.
        key: Option that named the file, for messages.

    Raises:
        ConfigError: for a file that cannot be read, or a line that is no such record; the message names file and line.
    """
    for _, record in numbered_jsonl(path, fields, key):
        yield record


def numbered_jsonl(
    path: str | Path, fields: Mapping[str, type | tuple[type, ...]], key: str = "env_config.data"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """As :func:`read_jsonl`, each record with its place (``file, line n``) for further messages."""
    with open_data(path, key) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, _record(line, fields, key, where)


def _record(line: str, fields: Mapping[str, type | tuple[type, ...]], key: str, where: str) -> dict[str, Any]:
    try:
        record = json_files.parse(line)
    except json.JSONDecodeError as error:
        raise ConfigError(key, f"{where}: not JSON ({error.msg} at character {error.pos + 1})") from error
    except ValueError as error:
        raise ConfigError(key, f"{where}: not JSON that can be read ({error})") from None
    if not isinstance(record, dict):
        raise ConfigError(key, f"{where}: expected a JSON object, got {type(record).__name__}")
    check_fields(record, fields, key, where)
    return record


def check_fields(
    record: Mapping[str, Any], fields: Mapping[str, type | tuple[type, ...]], key: str, where: str
) -> None:
    """Check that a record has ``fields`` of the right types.

    Raises: ConfigError: names ``where``, the field and what is wrong with it.
    """
    for name, kinds in fields.items():
        if name not in record:
            match = nearest(name, record)
            hint = f" (is it {match!r}?)" if match else f"; it has {', '.join(map(repr, record)) or 'none'}"
            raise ConfigError(key, f"{where}: field {name!r} is missing{hint}")
        if not isinstance(record[name], kinds):
            expected = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise ConfigError(key, f"{where}: field {name!r} is {type(record[name]).__name__}; expected {expected}")


def once_per_file(
    read: Callable[Concatenate[str, Arguments], Content],
) -> Callable[Concatenate[str | Path, Arguments], Content]:
    """A function that reads a file, made so that one that has not changed is read once per process, whichever games
    ask for it.
    """

    @lru_cache(maxsize=16)
    def kept(path: str, changed: int, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Content:
        return read(path, *args, **kwargs)

    @wraps(read)
    def reading(path: str | Path, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Content:
        return kept(str(path), changed_ns(path), *args, **kwargs)  # type: ignore[arg-type]

    return reading


def changed_ns(path: str | Path) -> int:
    """When a file was last changed; 0 of one that cannot be asked: its reader says what is wrong with it."""
    try:
        return expanded(path).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def readable(text: str) -> str:
    """The text with lone surrogates, which JSON may hold, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def category_in(record: Mapping[str, Any], field: str) -> str:
    """What kind of level a record is, as a ``field`` of it says in a few words; empty where it does not."""
    value = record.get(field)
    return one_line(readable(value).strip())[:LONGEST_CATEGORY] if isinstance(value, str) else ""


@cache
def package_lines(name: str) -> tuple[str, ...]:
    """Lines of a list of this package (``rllib_lmgame/envs/data``), comments (``#``) and blank lines left out."""
    text = resources.files("rllib_lmgame.envs").joinpath("data", name).read_text(encoding="utf-8")
    return tuple(line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


@cache
def package_lists(name: str) -> Mapping[str, tuple[str, ...]]:
    """The lists of such a file by name, each a line: ``name: value; value``."""
    pairs = (line.split(":", 1) for line in package_lines(name))
    return {key: tuple(value.strip() for value in values.split(";")) for key, values in pairs}
