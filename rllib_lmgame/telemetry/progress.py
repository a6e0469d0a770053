"""One line per iteration: what the run is doing and how well."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from ray.tune import Callback

from rllib_lmgame.results import number_at
from rllib_lmgame.telemetry.metrics import (
    EXPERT_TIMER,
    ROLLOUT_TIMER,
    UPDATE_TIMER,
    VINE_TIMER,
    WEIGHT_SYNC_TIMER,
    win_draw_loss,
)


class ProgressCallback(Callback):
    """Prints a line for each result of each trial.

    Args:
        stop: The experiment's stop criteria, for the ETA.
        since: ``time.monotonic()`` when whoever waits for the first trial began to; by default now.
        stream: Where to print; standard output by default.
    """

    def __init__(
        self, stop: Mapping[str, float] | None = None, since: float | None = None, stream: TextIO | None = None
    ) -> None:
        self._stop = dict(stop or {})
        self._since: float | None = time.monotonic() if since is None else since
        self._stream = stream
        self._first: dict[str, dict[str, tuple[float, float]]] = {}
        self._several = False

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Tune begins to start processes."""
        print("starting processes ...", file=self._stream or sys.stdout, flush=True)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial's processes are up: its first iteration begins."""
        self._several = len(trials) > 1
        took = "" if self._since is None else f" in {time.monotonic() - self._since:.0f} s"
        self._since = None  # Of a later trial nobody knows how long it waited for its turn.
        self._print(trial, f"processes up{took}")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial has a result."""
        self._several = len(trials) > 1
        self._print(trial, progress_line(result, self._eta(trial.trial_id, result)))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial failed."""
        self._print(trial, "failed")

    def _print(self, trial: Any, text: str) -> None:
        name = f"[{trial.trial_id}] " if self._several else ""
        print(name + text, file=self._stream or sys.stdout, flush=True)

    def _eta(self, trial_id: str, result: Mapping[str, Any]) -> float | None:
        """Seconds until the first counting criterion is met, from the pace since it began to move."""
        now = time.monotonic()
        estimates = []
        for key, goal in self._stop.items():
            value = number_at(result, key)
            if value is None or key.endswith(("_mean", "_rate")):
                continue
            began = self._first.setdefault(trial_id, {})
            if key not in began or value <= began[key][1]:
                began[key] = (now, value)
                continue
            since, start = began[key]
            estimates.append(max(0.0, (goal - value) * (now - since) / (value - start)))
        return min(estimates) if estimates else None


def progress_line(result: Mapping[str, Any], eta_s: float | None = None) -> str:
    """The line for one result of any algorithm; parts without a number are left out."""
    return "  ".join(part for part in (_head(result), _times(result), *_numbers(result), _eta_text(eta_s)) if part)


def _head(result: Mapping[str, Any]) -> str:
    iteration = f"iter {int(result.get('training_iteration', 0)):>4}"
    phase = number_at(result, "phase")
    steps = number_at(result, "supervised_steps")
    if phase == 1:
        return f"{iteration}  PPO {int(number_at(result, 'ppo_iteration') or 0):>4}"
    if steps is not None:
        return f"{iteration}  supervised step {int(steps):>5}"
    return iteration


def _times(result: Mapping[str, Any]) -> str:
    timers = result.get("timers")
    names = (
        (EXPERT_TIMER, "expert"),
        (ROLLOUT_TIMER, "play"),
        (VINE_TIMER, "values"),
        (UPDATE_TIMER, "update"),
        (WEIGHT_SYNC_TIMER, "sync"),
    )
    parts = []
    for key, name in names:
        value = number_at(timers, key) if isinstance(timers, Mapping) else None
        if value is not None and not (key == EXPERT_TIMER and number_at(result, "phase") == 1):
            parts.append(f"{name} {value:.2f}s")
    return " ".join(parts) or f"{number_at(result, 'time_this_iter_s') or 0:.1f}s"


def _numbers(result: Mapping[str, Any]) -> list[str]:
    ppo = number_at(result, "phase") != 0
    learner = _learner(result)
    chosen = [
        ("success", number_at(result, "env_runners/success_rate") if ppo else None, "{:.3f}"),
        ("return", number_at(result, "env_runners/episode_return_mean") if ppo else None, "{:+.2f}"),
        ("loss", number_at(learner, "policy_loss") if not ppo else None, "{:.3f}"),
        ("valid", number_at(result, "evaluation/env_runners/success_rate"), "{:.3f}"),
        ("kl", number_at(learner, "mean_kl_loss"), "{:.4f}"),
        ("entropy", number_at(learner, "entropy"), "{:.3f}"),
        ("gap", number_at(learner, "logprob_gap") if ppo else None, "{:.0e}"),
        ("tok/s", number_at(result, "env_runners/generated_tokens_per_s") if ppo else None, "{:.0f}"),
        ("busy", number_at(result, "env_runners/engine_busy_fraction") if ppo else None, "{:.0%}"),
    ]
    shown = [f"{name} {form.format(value)}" for name, value, form in chosen if value is not None]
    return shown if chosen[0][1] is not None or not ppo else [*_outcomes(result), *shown]


def _outcomes(result: Mapping[str, Any]) -> list[str]:
    """Win, draw and loss by role, of play without a success (trained policies against each other)."""
    runners = result.get("env_runners")
    found = win_draw_loss(runners) if isinstance(runners, Mapping) else []
    several = len({policy for policy, _, _ in found}) > 1
    shown = [
        f"{policy + ' ' if several else ''}{role} " + "-".join(f"{share:.2f}" for share in shares)
        for policy, role, shares in found
    ]
    return ["win-draw-loss " + ", ".join(shown)] if shown else []


def _learner(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Numbers of the first trained policy."""
    learners = result.get("learners")
    if isinstance(learners, Mapping):
        for name, numbers in learners.items():
            if name != "__all_modules__" and isinstance(numbers, Mapping):
                return numbers
    return {}


def _eta_text(eta_s: float | None) -> str:
    if eta_s is None:
        return ""
    minutes, seconds = divmod(round(eta_s), 60)
    return f"ETA {minutes}:{seconds:02d}"
