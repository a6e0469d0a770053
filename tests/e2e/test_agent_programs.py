"""Training on programs: real engine, env runner and learner; OpenAI's client on the other side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_replies import logprobs_by

from rllib_lmgame.rollouts.records import played_parts, trajectory_of

TRAIL = "rllib_lmgame.envs.games.adapted.agent_program.trail:follow"


@pytest.mark.slow
def test_what_is_recomputed_of_programs_is_what_was_recorded(start: Any, make_config: Any, tiny_model_dir: str) -> None:
    games = [
        {"env": f"agent:{path}", "weight": 1.0} for path in (TRAIL, "agent_programs:two_turns", "agent_programs:forest")
    ]
    config = make_config(
        env=None, env_config={}, games=games, language_model={"context_length": 256, "history": "keep"}
    )
    algorithm = start(config)
    episodes = algorithm.env_runner.sample(num_episodes=9)
    rows = 0
    for episode in episodes:
        (part,) = played_parts(episode)
        seen: list[int] = []
        for turn in trajectory_of(part).turns:
            seen = [*([] if turn.new_row else seen), *turn.prompt_ids.tolist(), *turn.response_ids.tolist()]
            rows += turn.new_row
            known = logprobs_by(Path(tiny_model_dir), seen, len(turn.response_ids))
            np.testing.assert_allclose(turn.rollout_logprobs, known, atol=1e-4)
    assert rows > len(episodes), "some have several rows"
    result = algorithm.train()
    learner = result["learners"]["player"]
    assert learner["logprob_diff"] <= 1e-4 and learner["first_minibatch_ratio_error"] <= 1e-3
    assert result["env_runners"]["num_episodes"] == 16
    assert not any(result["env_runners"].get("dropped", {}).values())
