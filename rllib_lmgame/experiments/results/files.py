"""Reading ``result.json``, and ending it at an iteration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_lmgame.base.json_files import parse

RESULT_FILE = "result.json"
ITERATION = "training_iteration"


def cut(path: Path, last: int | None) -> None:
    """End a file of results behind the line of iteration ``last``; a torn last line goes in any case."""
    if not path.is_file():
        return
    kept = 0
    with path.open("rb") as file:
        for line in file:
            iteration = _iteration_of(line)
            if not line.endswith(b"\n") or iteration is None or (last is not None and iteration > last):
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


def _iteration_of(line: bytes) -> int | None:
    try:
        return int(parse(line)[ITERATION])
    except (ValueError, OverflowError, KeyError, TypeError):
        return None
