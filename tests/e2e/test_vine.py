"""Values of states by play, with the real engine and learner."""

from __future__ import annotations

import math

import numpy as np
import pytest
from learner_weights import weights_of


@pytest.mark.slow
def test_states_are_played_on_and_the_policy_learns_from_their_values(start, make_config) -> None:
    """Self-play: rollouts from every state of both seats, which count as no episodes."""
    algorithm = start(
        make_config(
            env="lmgame/KuhnPoker-v0",
            env_config={},
            token_ppo={"advantage_estimator": {"type": "vine", "rollouts": 3}},
            text_rollouts={"episodes_per_iteration": 8},
        )
    )
    before = weights_of(algorithm, "player")
    result = algorithm.train()
    after = weights_of(algorithm, "player")
    runners, learner = result["env_runners"], result["learners"]["player"]
    steps = runners["num_env_steps_sampled"]
    assert runners["num_episodes"] == 8 and 16 <= steps <= 24
    assert runners["vine_states"] == steps and runners["vine_rollouts"] == 3 * steps
    assert runners["vine_failed"] == runners["vine_fallbacks"] == 0
    assert 3 * steps <= runners["vine_turns"] <= runners["vine_tokens"]
    assert result["timers"]["vine_s"] > 0
    assert learner["advantage_std"] > 0 and math.isfinite(learner["policy_loss"]) and math.isnan(learner["vf_loss"])
    assert any(not np.array_equal(before[name], after[name]) for name in before)
