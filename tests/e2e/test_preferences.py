"""Learning from preferences with the real learners: on files, and on groups that are played."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

THINGS = {"grass": "green", "sky": "blue", "snow": "white", "coal": "black"}


def dpo(values: dict[str, Any]) -> Any:
    from rllib_lmgame.algorithms.dpo import LMGameDPOConfig

    return LMGameDPOConfig().update_from_dict(values)


@pytest.fixture
def on_pairs(tiny_dict: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Function that gives a configuration on 32 pairs without any game."""
    rows = [
        {"prompt": f"{number}: what colour has {thing}?", "chosen": colour, "rejected": THINGS[other]}
        for number in range(8)
        for (thing, colour), other in zip(THINGS.items(), [*list(THINGS)[1:], "grass"], strict=True)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))

    def make(**own: Any) -> dict[str, Any]:
        options = {"data": str(path), "pairs_per_iteration": 16, "epochs": 2, **own}
        return tiny_dict(env=None, env_config={}, dpo=options, num_learners=0, lr=2e-3, training={"num_minibatches": 1})

    return make


def test_pairs_of_files_are_learnt_without_a_game(start: Any, on_pairs: Any, tmp_path: Path) -> None:
    """And a checkpoint goes on where it was."""
    values = on_pairs()
    algorithm = start(dpo(values))
    results = [algorithm.train() for _ in range(3)]
    assert not algorithm.engine_groups, "nothing is played"
    saved = algorithm.save_to_path(str(tmp_path / "saved"))
    results.append(algorithm.train())
    numbers = [result["learners"]["player"] for result in results]
    assert [bool(result["done"]) for result in results] == [False, False, False, True], "two passes"
    assert abs(numbers[0]["reward_margin"]) < 1e-5, "the policy is the reference"
    assert numbers[0]["policy_loss"] == pytest.approx(math.log(2), abs=1e-5)
    margins = [each["reward_margin"] for each in numbers]
    assert margins == sorted(margins) and margins[-1] > 0.1
    assert results[0]["pairs"] == values["dpo"]["pairs_per_iteration"] and results[0]["conversations_left_out"] == 0
    assert numbers[-1]["reward_accuracy"] > 0.9 and "vf_loss" not in numbers[-1]
    again = start(dpo(values))
    again.restore_from_path(saved)
    assert again.train()["learners"]["player"]["reward_margin"] == pytest.approx(margins[-1], rel=1e-4)


@pytest.mark.slow
def test_groups_that_are_played_are_compared(start: Any, tiny_dict: Any) -> None:
    """In games of two seats each seat for itself; where nothing differs nothing is learnt."""
    game = {"env": "lmgame/KuhnPoker-v0", "env_config": {}, "num_learners": 0, "training": {"num_minibatches": 1}}
    rollouts = {"episodes_per_iteration": 16, "group_size": 4}
    algorithm = start(dpo(tiny_dict(**game, text_rollouts=rollouts, dpo={"pairs_per_level": "all"})))
    result = algorithm.train()
    learner = result["learners"]["player"]
    assert result["pairs"] > 0 and learner["num_steps"] >= 1
    assert learner["policy_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert result["env_runners"]["num_episodes"] == 16 and algorithm.policy_version == 1
    quiet = start(dpo(tiny_dict(**game, text_rollouts=rollouts, dpo={"reward_gap": 1000})))
    result = quiet.train()
    assert result["pairs"] == 0 and quiet.policy_version == 0
    assert math.isnan(result["learners"]["player"]["policy_loss"]) and result["rl_iteration"] == 1
