"""Runs on games that ``rllib serve`` serves, each protocol's server in a process: real engine, env runner, learner."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

SOKOBAN = {"split": "train", "max_turns": 4, "max_actions": 20}
SERVED = {"mrlm": "mrlm:sokoban@{}", "openenv": "openenv:{}"}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["mrlm", "openenv"])
def test_a_policy_is_trained_on_a_game_of_a_server(protocol: str, start: Any, make_config: Any, rllib: Any) -> None:
    options = "{" + ", ".join(f"{key}: {value}" for key, value in SOKOBAN.items()) + "}"
    served = rllib(
        f"serve --protocol {protocol} --games sokoban=lmgame/Sokoban-v0 --env-config '{options}' --no-token --port 0"
    )
    served.wait_for("^sokoban at ")
    (address,) = re.findall(r"^sokoban at (\S+)", served.text, re.MULTILINE)
    game = {"env": SERVED[protocol].format(address), "env_config": {"split": "all"}}
    algorithm = start(make_config(**game, language_model={"context_length": 640}, num_env_runners=1))
    for _ in range(2):
        result = algorithm.train()
        played, learner = result["env_runners"], result["learners"]["player"]
        assert played["num_episodes"] == 16 and not any(played.get("dropped", {}).values())
        assert learner["trained_tokens"] > 0 and learner["grad_norm"] > 0 and learner["logprob_diff"] <= 1e-4
        assert 1 < played["turns_per_episode"] <= SOKOBAN["max_turns"]
    algorithm.stop()
    os.kill(served.process.pid, signal.SIGINT)
    (begun,) = re.findall(r"stopped; (\d+) games were begun", served.finish())
    assert int(begun) >= 32
