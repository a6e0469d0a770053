"""``result.json`` with one line per iteration, also when iterations are played again; and ``progress.csv``.

1. A trial that starts again goes on from its newest checkpoint: lines of later iterations are cut off first.
2. In a local directory lines go straight into the results, so that a sudden end of the driver loses none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback

from rllib_lmgame.experiments.results.files import ITERATION, RESULT_FILE, cut, json_lines

PROGRESS_FILE = "progress.csv"


class ResultFile(JsonLoggerCallback):
    """Tune's logger of ``result.json`` with the guarantees above."""

    def log_trial_start(self, trial: Any) -> None:
        self.log_trial_end(trial)
        trial.init_local_path()
        if trial.storage.storage_filesystem.type_name == "local":
            path = Path(trial.storage.trial_fs_path) / RESULT_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            path = Path(trial.local_path) / RESULT_FILE
            if not path.exists():
                self._restore_from_remote(RESULT_FILE, trial)
        cut(path, iteration_kept(trial))
        self.update_config(trial, trial.config)
        self._trial_files[trial] = path.open("at", encoding="utf-8")


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


class ProgressFile(CSVLoggerCallback):
    """Tune's ``progress.csv``, which is written when the run ends, from ``result.json`` in a local directory."""

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        pass

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        import pandas as pd

        for trial in trials:
            directory = Path(trial.storage.trial_fs_path)
            results = [{**each, "config": None} for each in json_lines(directory / RESULT_FILE)]
            if results:
                table = pd.json_normalize(results, sep="/").drop(columns="config")
                table.to_csv(directory / PROGRESS_FILE, index=False)
