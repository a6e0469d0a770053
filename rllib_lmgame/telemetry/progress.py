"""One line per training iteration on the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ray.tune import Callback


def lookup(result: Mapping[str, Any], path: str) -> Any:
    """Value at ``a/b/c`` in a nested result, ``None`` if it is not there."""
    value: Any = result
    for part in path.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


class ProgressCallback(Callback):
    """Prints a line for each result of each trial."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        """Called by Tune with every result."""
        name = f"{trial.trial_id} " if len(trials) > 1 else ""
        parts = [f"{name}iteration {result.get('training_iteration')}", f"{result.get('time_total_s', 0.0):.0f} s"]
        for label, path in (("return", "env_runners/episode_return_mean"), ("success", "env_runners/success_rate")):
            value = lookup(result, path)
            if isinstance(value, int | float):
                parts.append(f"{label} {value:.3f}")
        print("  ".join(parts), flush=True)
