"""A metric that no result has is an error at the first result."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from rllib_lmgame.experiments.run.callbacks import MetricNames

RESULT: dict[str, Any] = {
    "phase": 1,
    "num_env_steps_sampled_lifetime": 9,
    "env_runners": {"success_rate": math.nan},
    "learners": {"player": {"entropy": 1.0}},
    "evaluation": {"exploitability": math.nan, "env_runners": {"success_rate": math.nan}},
}


def told(metric: str, result: dict[str, Any]) -> str:
    """What is wrong with the name, if anything is."""
    ended: list[bool] = []
    callback = MetricNames({"stop.x": metric}, lambda: ended.append(True))
    callback.on_trial_result(1, [], SimpleNamespace(trial_id="t"), result)
    assert bool(ended) is (callback.error is not None)
    return "" if callback.error is None else f"{callback.error.path}: {callback.error.message}"


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("success_rate", "did you mean 'env_runners/success_rate'?"),
        ("evaluation/nonsense", "no result has"),
        ("evaluation/exploitabilty", "did you mean 'evaluation/exploitability'?"),
        ("env_runners/success_rate", ""),
        ("env_runners/games/lmgame_Sokoban-v0/success_rate", ""),
        ("evaluation/env_runners/success_rate", ""),
    ],
)
def test_the_nearest_name_is_told(metric: str, words: str) -> None:
    message = told(metric, RESULT)
    assert words in message and bool(words) is bool(message)


def test_a_warm_start_and_later_results_are_not_looked_at() -> None:
    assert not told("nonsense", {**RESULT, "phase": 0})
    callback, trial = MetricNames({"stop.x": "mine"}), SimpleNamespace(trial_id="t")
    callback.on_trial_result(1, [], trial, {**RESULT, "mine": 1.0})
    callback.on_trial_result(2, [], trial, RESULT)
    assert callback.error is None
