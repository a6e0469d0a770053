"""What is done with what Tune tells: results go into files, waits and restarts are printed, names of metrics compared.

Of ``result.json``, with one line per iteration:

1. A trial that starts again goes on from its newest checkpoint: lines of later iterations are cut off first.
2. In a local directory lines go straight into the results, so that a sudden end of the driver loses none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ray.tune import Callback
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.resources import ResourceRequest, shortfall
from rllib_lmgame.experiments.results.files import ITERATION, RESULT_FILE, cut, json_lines
from rllib_lmgame.experiments.results.outcome import cause
from rllib_lmgame.telemetry.metrics import unknown_metric
from rllib_lmgame.telemetry.trial_names import names_of

SAY_EVERY_S = 30.0
"""Between two lines about the same wait."""


class WaitingCallback(Callback):
    """Prints a line every half minute while trials wait for resources; a joined cluster may still grow.

    ``request`` is that of one trial, ``keys`` the settings that ask for it.
    """

    def __init__(self, request: ResourceRequest, keys: str, stream: TextIO | None = None) -> None:
        self._request = request
        self._keys = keys
        self._stream = stream
        self._next = time.monotonic() + SAY_EVERY_S

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        text, start = cause(trial).splitlines()[-1], "begins anew: it has no checkpoint yet"
        if trial.checkpoint is not None:
            start = f"goes on from {trial.checkpoint.path}"
        failures = f"{trial.num_failures} of max_failures: {trial.max_failures}"
        print(
            f"trial {names_of(trials).get(trial.trial_id, trial.trial_id)} failed ({failures}) and {start}: {text}",
            file=self._stream or sys.stderr,
        )

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        now = time.monotonic()
        if any(trial.status == "RUNNING" for trial in trials):
            self._next = now + SAY_EVERY_S
        elif now >= self._next and any(trial.status == "PENDING" for trial in trials):
            self._next = now + SAY_EVERY_S
            text = _look(self._request, self._keys)
            if text is not None:
                print(text, file=self._stream or sys.stderr, flush=True)


def _look(request: ResourceRequest, keys: str) -> str | None:
    import ray

    groups = ray.util.placement_group_table().values()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return waiting_line(request, keys, nodes, ray.available_resources(), [group["state"] for group in groups])


def waiting_line(
    request: ResourceRequest,
    keys: str,
    nodes: Sequence[Mapping[str, float]],
    free: Mapping[str, float],
    states: Sequence[str],
) -> str | None:
    """What to say of a wait; ``None`` if a trial has its resources and its processes are starting.

    ``nodes`` are all resources of each node, ``free`` is summed over nodes, ``states`` are the placement groups'.
    """
    asked = f" ({keys})" if keys else ""
    missing = shortfall(request, nodes)
    if missing is not None:
        return f"waiting for nodes: a trial {missing}{asked}"
    if "PENDING" not in states:
        return None
    kinds = request.total
    amounts = ", ".join(f"{amount:g} {kind} (free {free.get(kind, 0):g})" for kind, amount in kinds.items())
    return f"waiting for resources that are in use: a trial asks for {amounts}{asked}"


class MetricNames(Callback):
    """Compares the metrics that ``named`` keys of an experiment wait for with the first result of every trial.

    A warm start comes before the first result that counts. ``end`` ends the run, which then raises ``error``: what a
    callback raises, Tune would wrap.
    """

    def __init__(self, named: Mapping[str, str], end: Callable[[], None] = lambda: None) -> None:
        self.error: ConfigError | None = None
        self._named = named
        self._end = end
        self._seen = set[str]()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if trial.trial_id in self._seen or result.get("phase") == 0:
            return
        self._seen.add(trial.trial_id)
        for key, metric in self._named.items():
            problem = unknown_metric(metric, result)
            if problem is not None and self.error is None:
                self.error = ConfigError(key, problem)
                self._end()


@contextmanager
def memory_deaths_are_failures() -> Iterator[None]:
    """Let Tune take such a death as that of an actor, inside."""
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import OutOfMemoryError, RayActorError

    plain = RayActorManager._actor_task_failed

    def failed(self: Any, tracked_actor_task: Any, exception: Exception) -> None:
        known = RayActorError(error_msg=str(exception)) if isinstance(exception, OutOfMemoryError) else exception
        plain(self, tracked_actor_task, known)

    RayActorManager._actor_task_failed = failed
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = plain


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
