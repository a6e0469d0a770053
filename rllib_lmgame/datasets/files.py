"""Files of data for supervised learning, as records with their places.

A name is a file, a directory, a pattern (``runs/*.jsonl``), ``data:NAME[:PART]`` (a published data set), or
``hf:OWNER/NAME[:SPLIT]``, any data set of the hub. JSON (a list, or one record per line) and Parquet are read, in the
order of file names and records. A list of LMRL-Gym's steps, on a line or in a list, is one record.
"""

from __future__ import annotations

import codecs
import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.storage import expanded, matches
from rllib_lmgame.base.text import first_line
from rllib_lmgame.datasets.readers.lmrl_gym import STEP_KEYS, STEPS
from rllib_lmgame.downloads.places import is_named, paths_of
from rllib_lmgame.envs.support.parquet import is_table, stream_table

HUB = "hf:"
KINDS = (".json", ".jsonl", ".ndjson", ".parquet")
"""Endings of files that are read from a directory or data set."""

Numbered = tuple[str, Mapping[str, Any]]
"""The place of a record (file and line, entry or row), and the record."""


def files_of(names: str | Sequence[str]) -> list[Path]:
    """The files that ``names`` refer to. Raises: ConfigError: a name refers to none."""
    found: dict[Path, None] = {}
    for name in [names] if isinstance(names, str) else names:
        found |= dict.fromkeys(_files_of(name))
    if not found:
        raise ConfigError("data", "names no file")
    return list(found)


def _files_of(name: str) -> list[Path]:
    if is_named(name):
        return paths_of(name)
    if name.startswith(HUB):
        return _of_hub(name.removeprefix(HUB))
    path = expanded(name)
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            return _of_directory(path, name)
        found = matches(path) if glob.has_magic(name) else []
    except (OSError, ValueError) as error:
        raise ConfigError("data", f"{name} cannot be read: {first_line(error)}") from None
    files = [match for match in found if match.is_file()]
    if not files:
        raise ConfigError("data", f"no such file: {name}")
    return files


def _of_directory(path: Path, name: str, split: str = "") -> list[Path]:
    files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in KINDS and file.is_file()]
    if split:  # As the hub does: a word of the file's name or of a directory above it.
        files = [file for file in files if split in re.split(r"[^A-Za-z0-9]+", str(file.relative_to(path)))]
    if not files:
        raise ConfigError("data", f"{name} holds no file {' or '.join(KINDS)}" + f" of a split {split!r}" * bool(split))
    return files


def _of_hub(name: str) -> list[Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    repository, _, split = name.partition(":")
    patterns = [f"*{kind}" for kind in KINDS]
    try:
        directory = snapshot_download(repository, repo_type="dataset", allow_patterns=patterns)
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ConfigError("data", f"{HUB}{name} cannot be fetched: {first_line(error)}") from None
    return _of_directory(Path(directory), f"{HUB}{name}", split)


def records_of(path: Path) -> Iterator[Numbered]:
    """The records of a file with their places. Raises: ConfigError: names the file and the line or entry."""
    try:
        if is_table(path):
            yield from ((where, _without_nulls(record)) for where, record in stream_table(path, "data"))
            return
        with path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"").removeprefix(codecs.BOM_UTF8).lstrip()
            if first.startswith(b"[") and not _are_steps(_parsed(first)):
                for number, record in enumerate(_of_json(str(path), first + file.read()), 1):
                    where = f"{path}, entry {number}"
                    yield where, _mapping(where, record)
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield where, _mapping(where, _of_json(where, line))
    except OSError as error:
        raise ConfigError("data", f"{path} cannot be read: {error.strerror or first_line(error)}") from None


def _without_nulls(value: Any) -> Any:
    """A value of a table without nulls, which stand for keys that only other rows have."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _are_steps(record: Any) -> bool:
    return (
        isinstance(record, list)
        and bool(record)
        and all(isinstance(step, Mapping) and step.keys() >= STEP_KEYS for step in record)
    )


def _of_json(where: str, text: bytes) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError("data", f"{where}: no JSON: {first_line(error)}") from None


def _parsed(line: bytes) -> Any:
    try:
        return parse(line)
    except ValueError:
        return None


def _mapping(where: str, record: Any) -> Mapping[str, Any]:
    if _are_steps(record):
        return {STEPS: record}
    if not isinstance(record, Mapping):
        raise ConfigError("data", f"{where}: a record must be a mapping, not {type(record).__name__}")
    return record
