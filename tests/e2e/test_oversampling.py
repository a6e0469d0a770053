"""Oversampling with the real engine and learner."""

from __future__ import annotations

import math

import pytest


@pytest.mark.slow
def test_a_rollout_ends_when_enough_groups_have_finished(start, make_config) -> None:
    """What was left behind is in no number but its own, and nothing of it keeps the engine busy."""
    algorithm = start(
        make_config(
            data_selection={"oversample": 1.5},
            text_rollouts={"episodes_per_iteration": 8, "group_size": 2},
            evaluation_interval=1,
        )
    )
    for iteration in range(2):
        result = algorithm.train()
        selection, runners = result["data_selection"], result["env_runners"]
        assert (selection["groups"], selection["kept_episodes"], selection["aborted_episodes"]) == (4, 8, 4)
        assert runners["num_episodes"] == 8 and runners["num_episodes_lifetime"] == 8 * (iteration + 1)
        assert not any(runners["dropped"].values()), "no reply was lost"
        assert math.isfinite(result["learners"]["player"]["policy_loss"])
        assert result["evaluation"]["env_runners"]["num_episodes"] == 8
    (engine,) = algorithm.engine_groups["player"].stats()
    assert engine.running == 0
