"""``benchmarks/estimators.py`` and ``async_rollouts.py``: settings are those of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import async_rollouts
import estimators
import pytest

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.experiments.checks.check import check_quickly
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.policies.model.tiny import build_tiny_model


@pytest.mark.parametrize("method", [*estimators.METHODS, "warm start"])
def test_settings_are_those_of_a_run(method: str, tmp_path: Path) -> None:
    if method == "warm start":
        file, settings = estimators.SUPERVISED, estimators.warm_start_settings(1)
    else:
        file = estimators.FILES.get(method, estimators.QUICKSTART)
        model = build_tiny_model(tmp_path, ["Up", "Down", "Left", "Right"])
        settings = estimators.settings(method, seed=1, turns=1000, model=str(model), teacher=str(model))
    specs = read_experiments(str(file), [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    check_quickly(specs)


@pytest.mark.parametrize("tail", [0, 4])
def test_iterations_that_overlap_are_those_of_a_run(tail: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LMGamePPOConfig, "build_algo", lambda config: config.validate())
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'stop'"):
        async_rollouts.measured(SimpleNamespace(tail=tail, minibatches=1, wait_ms=0.0), threads=1, max_staleness=tail)
