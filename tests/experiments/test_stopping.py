"""Trials end once a metric has risen, or fallen, to its value."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from ray.tune.experiment import Trial

from rllib_lmgame.experiments.checks.dry_run import dry_run_lines
from rllib_lmgame.experiments.spec import ExperimentOptions, stopping_criteria
from tests.experiments.test_check import GAME, STOCK, check, error_of


@pytest.mark.parametrize("number", [float, np.float32, np.float64])
@pytest.mark.parametrize(("value", "ends"), [(0.44, False), (0.03125, True), (0.01, True), (float("nan"), False)])
def test_a_metric_that_falls_ends_its_trial(number, value, ends):
    """As Tune itself decides it."""
    criteria = stopping_criteria(
        ExperimentOptions(run="PPO", stop={"rl_iteration": 9}, stop_below={"evaluation/gap": 0.03125})
    )
    trial = SimpleNamespace(stopping_criterion=pickle.loads(pickle.dumps(criteria)))
    result = {"rl_iteration": 8, "evaluation/gap": number(value)}
    assert Trial.should_stop(trial, result) is ends
    assert Trial.should_stop(trial, {**result, "rl_iteration": 9})


def test_both_ways_are_read_checked_and_shown_alike():
    nested = "stop_below={evaluation: {exploitability: 0.03}, env_runners: {episode_return_mean: 1}}"
    experiment = check(STOCK, nested)
    below = {"evaluation/exploitability": 0.03, "env_runners/episode_return_mean": 1.0}
    assert experiment.spec.options.stop_below == below
    shown = yaml.safe_load("\n".join(dry_run_lines(experiment)))
    assert (shown["stop"], shown["stop_below"]) == ({"training_iteration": 1}, below)
    error = error_of(STOCK, "stop_below={trainin_iteration: 1}")
    assert (error.path, "did you mean 'training_iteration'" in error.message) == ("stop_below.trainin_iteration", True)
    error = error_of(STOCK, "stop_below={training_iteration: 1}")
    assert (error.path, error.message) == ("stop_below.training_iteration", "stands below `stop` too; keep one")


def test_a_run_over_a_list_of_levels_ends_after_so_many_passes():
    assert not [said for said in check(GAME, "stop={data_epochs: 3}").spec.notices if "data_epochs" in said]
    assert "must be greater than 0" in error_of(GAME, "stop={data_epochs: 0}").message
    assert "only grows" in error_of(GAME, "stop_below={data_epochs: 3}").message
