"""``result.json`` and ``progress.csv``: one line per iteration, also when iterations are played again.

1. A trial that starts again goes on from its newest checkpoint: lines of later iterations are cut off first.
2. In a local directory lines go straight into the results, so that a sudden end of the driver loses none.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.utils import flatten_dict
from ray.tune.utils.util import SafeFallbackEncoder

from rllib_lmgame.json_files import parse

RESULT_FILE, PROGRESS_FILE = "result.json", "progress.csv"
ITERATION = "training_iteration"


class ResultFile(JsonLoggerCallback):
    """Tune's logger of ``result.json`` with the guarantees above."""

    def log_trial_start(self, trial: Any) -> None:
        path = _prepared(self, trial, RESULT_FILE)
        self.update_config(trial, trial.config)
        self._trial_files[trial] = path.open("at", encoding="utf-8")

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        if trial not in self._trial_files:
            self.log_trial_start(trial)
        self._trial_files[trial].write(json.dumps(result, cls=SafeFallbackEncoder) + "\n")
        self._trial_files[trial].flush()


class ProgressFile(CSVLoggerCallback):
    """Tune's logger of ``progress.csv`` with the guarantees above; a file that is continued keeps its columns."""

    def log_trial_start(self, trial: Any) -> None:
        path = _prepared(self, trial, PROGRESS_FILE)
        columns = _columns(path)
        self._trial_files[trial] = path.open("at", encoding="utf-8", newline="")
        self._trial_csv[trial] = columns and csv.DictWriter(self._trial_files[trial], columns, extrasaction="ignore")

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        """One line; the first result decides on the columns."""
        if trial not in self._trial_files:
            self.log_trial_start(trial)
        flat = flatten_dict({key: value for key, value in result.items() if key != "config"}, delimiter="/")
        if self._trial_csv[trial] is None:
            self._trial_csv[trial] = csv.DictWriter(self._trial_files[trial], list(flat), extrasaction="ignore")
            self._trial_csv[trial].writeheader()
        self._trial_csv[trial].writerow(flat)
        self._trial_files[trial].flush()


def iteration_kept(trial: Any) -> int | None:
    """The last iteration whose lines stay when a trial starts: its checkpoint's, or 0 without one.

    ``None``: all lines stay, since the checkpoint is another trial's (population-based training).
    """
    own = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
    if own is None:
        return 0
    if Path(own.checkpoint.path).parent != Path(trial.storage.trial_fs_path):
        return None
    return int(own.metrics.get(ITERATION, 0))


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


def _columns(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), None)


def _prepared(logger: Any, trial: Any, name: str) -> Path:
    """The file to write to, with the lines that stay."""
    logger.log_trial_end(trial)
    trial.init_local_path()
    if trial.storage.storage_filesystem.type_name == "local":
        path = Path(trial.storage.trial_fs_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
    else:
        path = Path(trial.local_path) / name
        if not path.exists():
            logger._restore_from_remote(name, trial)
    cut(path, iteration_kept(trial))
    return path
