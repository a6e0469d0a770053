"""Reading ``result.json`` and ``progress.csv``, and ending them at an iteration."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_lmgame.base.json_files import parse

RESULT_FILE, PROGRESS_FILE = "result.json", "progress.csv"
ITERATION = "training_iteration"


def cut(path: Path, last: int | None) -> None:
    """End a file of results behind the line of iteration ``last``; a torn last line goes in any case."""
    if not path.is_file():
        return
    kept = 0
    with path.open("rb") as file:
        column = _iteration_column(file.readline()) if path.suffix == ".csv" else None
        kept = file.tell() if column is not None else 0
        file.seek(kept)
        for line in file:
            iteration = _iteration_of(line, column)
            if not line.endswith(b"\n") or (iteration is None and column is None):
                break
            if last is not None and iteration is not None and iteration > last:
                break
            kept += len(line)
    if kept < path.stat().st_size:
        os.truncate(path, kept)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The results in a file, up to the first line that cannot be read; none if there is no file."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                result = parse(line)
            except ValueError:
                return
            if isinstance(result, dict):
                yield result


def _iteration_column(header: bytes) -> int | None:
    names = next(csv.reader([header.decode("utf-8", "replace")]), [])
    return names.index(ITERATION) if ITERATION in names and header.endswith(b"\n") else None


def _iteration_of(line: bytes, column: int | None) -> int | None:
    """Iteration of a line of CSV, or of JSON where ``column`` is ``None``."""
    try:
        text = line.decode("utf-8")
        return int(parse(text)[ITERATION] if column is None else next(csv.reader([text]))[column])
    except (ValueError, OverflowError, KeyError, TypeError, IndexError, StopIteration):
        return None
