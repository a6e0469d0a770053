"""A run whose games are talked to, sampled and scaled each in its own way: it learns, and it goes on after a stop."""

from __future__ import annotations

from typing import Any

import pytest

from rllib_lmgame.evaluation.evaluate import engines_for, saved_policies
from rllib_lmgame.evaluation.learning_report import play
from rllib_lmgame.rollouts.episodes import episode_metrics
from tests.e2e.test_checkpoints import DETERMINISTIC, check_resumes_exactly

SOKOBAN = {"env": "lmgame/Sokoban-v0", "env_config": {"split": "train", "max_turns": 3}}
GAMES = [
    {
        **SOKOBAN,
        "name": "calm",
        "language_model": {"system_prompt": "{max_turns}", "max_tokens_per_turn": {"points": [[0, 16], [3, 13]]}},
        "episodes": 8,
        "group_size": 4,
        "temperature": {"by": "env_steps", "points": [[0, 0.5], [100, 0.7]]},
        "reward_scale": 0.5,
    },
    {
        **SOKOBAN,
        "name": "wild",
        "language_model": {"answer_tag": "move", "reply_prefill": "<move>", "history": "keep"},
        "episodes": 6,
        "group_size": 2,
        "temperature": 1.5,
    },
]


def config_of(tiny_dict, **overrides: Any) -> Any:
    from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

    values = tiny_dict(**overrides)
    values = {key: value for key, value in values.items() if key not in ("env", "env_config")}
    return LMGamePPOConfig().update_from_dict({**values, "games": GAMES})


@pytest.mark.slow
def test_two_entries_of_one_game_train_and_resume_as_if_never_stopped(start, tiny_dict, tmp_path) -> None:
    rollouts = {"episodes_per_iteration": 14, "deterministic": True}
    selection = {"zero_variance_groups": {"type": "drop", "max_refill": 1}}
    config = config_of(tiny_dict, **(DETERMINISTIC | {"text_rollouts": rollouts, "data_selection": selection}))
    run = check_resumes_exactly(config, tmp_path, start)
    assert [values["games.calm.language_model.max_tokens_per_turn"] for values in run.scheduled] == [16, 16, 15, 14, 13]
    temperatures = [values["games.calm.temperature"] for values in run.scheduled]
    assert temperatures[0] == 0.5 and temperatures == sorted(temperatures) and temperatures[-1] > 0.6


@pytest.mark.slow
def test_learners_take_log_probabilities_at_each_games_temperature(start, tiny_dict, tmp_path) -> None:
    evaluation = {"games": [{**GAMES[1], "temperature": 0.0, "episodes": 3}, {**SOKOBAN, "name": "usual"}]}
    evaluation["games"][0] = {key: each for key, each in evaluation["games"][0].items() if key != "group_size"}
    config = config_of(
        tiny_dict,
        text_rollouts={"episodes_per_iteration": 14},
        evaluation_config=evaluation,
        evaluation_interval=1,
        evaluation_duration=5,
    )
    algorithm = start(config)
    result = algorithm.train()
    learner = result["learners"]["player"]
    assert learner["logprob_diff"] <= 1e-4 and learner["first_minibatch_ratio_error"] <= 1e-3
    games = result["env_runners"]["games"]
    assert {name: numbers["num_episodes"] for name, numbers in games.items()} == {"calm": 8, "wild": 6}
    seen = result["evaluation"]["env_runners"]["games"]
    assert {name: numbers["num_episodes"] for name, numbers in seen.items()} == {"wild": 3, "usual": 5}
    saved = saved_policies(algorithm.save_to_path(tmp_path / "checkpoint"), trust=True)
    with engines_for(saved, None) as runner:
        again = episode_metrics(play(runner, saved.games_for_evaluation(), 5).summaries)["games"]
    assert {name: numbers["num_episodes"] for name, numbers in again.items()} == {"wild": 3, "usual": 5}
    for name, numbers in again.items():
        if name == "wild":  # Greedy: the same replies on the same levels.
            assert numbers["episode_return_mean"] == pytest.approx(seen[name]["episode_return_mean"])
