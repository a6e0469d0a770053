"""``benchmarks/estimators.py``: every method's settings are those of a run."""

from __future__ import annotations

import json
from pathlib import Path

import estimators
import pytest

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
