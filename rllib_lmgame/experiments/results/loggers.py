"""``result.json`` and ``progress.csv``: one line per iteration, also when iterations are played again.

1. A trial that starts again goes on from its newest checkpoint: lines of later iterations are cut off first.
2. In a local directory lines go straight into the results, so that a sudden end of the driver loses none.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.utils import flatten_dict
from ray.tune.utils.util import SafeFallbackEncoder

from rllib_lmgame.experiments.results.files import ITERATION, PROGRESS_FILE, RESULT_FILE, cut


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
