"""Metrics that a file names and no result has: an error at the first result, with the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.tune import Callback

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.telemetry.metrics import unknown_metric


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
