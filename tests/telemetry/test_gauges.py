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
