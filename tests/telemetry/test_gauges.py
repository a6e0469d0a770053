"""What the gauges are labelled with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray.util.metrics
from ray.tune.result import TRIAL_INFO

from rllib_lmgame.algorithms import base
from rllib_lmgame.algorithms.ppo import LMGamePPO
from rllib_lmgame.telemetry.gauges import LMGameGauges


class Started(Exception):
    """Set-up has come as far as this test needs."""


class Named(LMGamePPO):
    """Stops where models would be prepared."""

    def setup(self, config) -> None:
        with pytest.raises(Started):
            super().setup(config)


def test_gauges_carry_the_trials_name(ray_cluster, tiny_dict, monkeypatch):
    def stop(config):
        raise Started

    monkeypatch.setattr(base, "prepare_models", stop)
    seen: list[dict[str, str]] = []
    gauge = SimpleNamespace(set=lambda value, tags: seen.append(tags))
    monkeypatch.setattr(ray.util.metrics, "Gauge", lambda *arguments, **options: gauge)
    algorithm = Named(
        {**tiny_dict(), TRIAL_INFO: SimpleNamespace(trial_name="LMGamePPO_abc_00001", trial_id="abc_00001")}
    )
    LMGameGauges().on_train_result(
        algorithm=algorithm, result={"env_runners": {"success_rate": 0.5}, "learners": {"player": {"entropy": 1.0}}}
    )
    assert seen == [
        {"trial": "LMGamePPO_abc_00001", "policy": ""},
        {"trial": "LMGamePPO_abc_00001", "policy": "player"},
    ]
    assert algorithm.trial_id == "abc_00001"


def test_a_trial_is_there_before_its_first_result_and_a_warm_start_shows_what_it_measures(monkeypatch):
    """Where an iteration did not measure a number, its gauge keeps what was measured before."""
    seen: list[tuple[str, float]] = []
    monkeypatch.setattr(
        ray.util.metrics,
        "Gauge",
        lambda name, **options: SimpleNamespace(set=lambda value, tags: seen.append((name, value))),
    )
    nan, gauges, algorithm = float("nan"), LMGameGauges(), SimpleNamespace(trial_name="t")
    gauges.on_algorithm_init(algorithm=algorithm)
    assert ("lmgame_training_iteration", 0.0) in seen
    seen.clear()
    supervised = {
        "training_iteration": 3,
        "supervised_steps": 30.0,
        "ppo_iteration": 0.0,
        "env_runners": {"success_rate": nan, "tokens_per_turn": nan},
        "evaluation": {"env_runners": {"success_rate": 0.25}},
        "learners": {"player": {"policy_loss": 2.5, "vf_loss": nan}},
    }
    gauges.on_train_result(algorithm=algorithm, result=supervised)
    assert dict(seen) == {
        "lmgame_training_iteration": 3.0,
        "lmgame_supervised_steps": 30.0,
        "lmgame_ppo_iteration": 0.0,
        "lmgame_evaluation_success_rate": 0.25,
        "lmgame_policy_loss": 2.5,
    }
