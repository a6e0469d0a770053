"""Exact measures during training and of a checkpoint, through Ray, an engine and the learner."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllib_lmgame.algorithms.measuring.measures import measure_policies
from rllib_lmgame.evaluation.evaluate import saved_policies
from rllib_lmgame.rollouts.records import GameConfig


@pytest.mark.slow
def test_exploitability_is_a_result_and_that_of_the_averaged_weights(start, make_config, tmp_path) -> None:
    config = make_config(
        env="lmgame/KuhnPoker-v0",
        env_config={},
        lr=1e-2,
        algorithm_config_overrides_per_module={"player": {"training": {"ema_decay": 0.5}}},
        evaluation_interval=2,
        evaluation_config={"measures": ["exploitability"]},
    )
    algorithm = start(config)
    first, second = algorithm.train(), algorithm.train()
    assert first["evaluation"]["exploitability"] != first["evaluation"]["exploitability"], "a column of its own"
    measured = second["evaluation"]
    assert 0 < measured["exploitability"] < 2 and measured["nash_conv"] == 2 * measured["exploitability"]
    assert 0 < measured["illegal_mean"] <= measured["illegal_max"] <= 1
    assert algorithm.evaluate()["exploitability"] == pytest.approx(measured["exploitability"], abs=1e-6)
    in_training = measure_policies(algorithm.config, ["exploitability"], config.training_games())
    assert measured["exploitability_last"] == pytest.approx(in_training["exploitability"], abs=1e-6)
    assert abs(measured["exploitability_last"] - measured["exploitability"]) > 1e-5

    against = {"type": "against", "player": "random", "games": 4}
    talking = GameConfig(env="lmgame/IteratedPrisonersDilemma-v0", env_config={"rounds": 1, "chat_turns": 1})
    numbers = measure_policies(
        algorithm.config, [against], [talking], play=lambda plans, game: algorithm._evaluate_plans(plans, [game], None)
    )
    assert numbers["failed_random"] == 0 and 0 <= numbers["illegal_random"] <= 1, "the engine talks as well"
    assert sum(numbers[f"{end}_rate_random"] for end in ("win", "draw", "loss")) == 1

    checkpoint = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    assert Path(saved_policies(checkpoint, trust=True).model_files["player"].source).name == "hf"
