"""All options of a run as one frozen group: read from a file or set in Python, and what a policy has of its own."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from ray import tune

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import as_data
from rllib_lmgame.config.algorithms import PPO
from rllib_lmgame.config.run import read
from rllib_lmgame.inference.options import InferenceOptions

ROOM = {"env": "lmgame/Sokoban-v0"}


def test_values_of_a_dictionary_of_the_configuration_can_be_changed() -> None:
    changed = {
        **LMGamePPOConfig().environment(**ROOM).to_dict(),
        "gamma": 0.9,
        "training": {"policy_loss": {"clip_low": 0.1}},
    }
    run = LMGamePPOConfig.from_dict(changed).run
    assert (run.env, run.gamma, run.training.policy_loss.clip_low) == (ROOM["env"], 0.9, 0.1)


def test_search_spaces_of_rllibs_keys_wait_for_tune() -> None:
    space = tune.grid_search([1e-5, 1e-4])
    config = LMGamePPOConfig().environment(**ROOM).training(lr=space, gamma=tune.uniform(0.9, 1)).training(gamma=0.5)
    config.text_rollouts(group_size=4)
    found = config.to_dict()
    assert (found["lr"], found["gamma"], found["text_rollouts"]) == (space, 0.5, {"group_size": 4})
    assert LMGamePPOConfig().update_from_dict({**found, "lr": 1e-4}).run.lr == 1e-4


def test_all_wrong_keys_are_named_at_once_where_they_belong() -> None:
    wrong = {"lrr": 1, "training": {"policy_loss": {"clip_hihg": 0.3}, "lr": 3}, "model": {}, "gamma": [1]}
    wrong |= {"games": [{"env": "x", "wieght": 1}, {"enw": 1}], "policies": {"a": {"who": 1}, "b": {"traind": 1}}}
    with pytest.raises(ConfigError) as error:
        read({**ROOM, **wrong}, PPO)
    found = {each.path: each.message for each in error.value.each}
    assert found.keys() == {
        *("config.lrr", "config.model", "config.gamma"),
        *("config.training.policy_loss.clip_hihg", "config.training.lr", "config.policies.a.who"),
        *("config.games[0].wieght", "config.games[1].env", "config.games[1].enw", "config.policies.b.traind"),
    }
    assert "config.lr" in found["config.training.lr"] and "language_model" in found["config.model"]


SCHEDULE = {"points": [[0, 4], [9, 2]]}


@pytest.mark.parametrize(
    ("had", "given", "lost"),
    [
        ({"lr": SCHEDULE}, {"lr": 1e-5}, "lr"),
        ({"lambda": {"points": [[0, 1], [9, 0]]}}, {"lambda": 0.5}, "lambda"),
        ({"env_config": {"max_turns": SCHEDULE}}, {"env_config": {"max_turns": 5}}, "env_config.max_turns"),
        ({"env_config": {"max_turns": SCHEDULE}}, {"env_config": {}}, "env_config.max_turns"),
        ({"inference": {"temperature": SCHEDULE}}, {"inference": {"temperature": 2}}, "inference.temperature"),
        ({"inference": {"temperature": SCHEDULE}}, {"inference": InferenceOptions()}, "inference.temperature"),
        ({"training": {"kl": {"coef": SCHEDULE}}}, {"training": {"kl": None}}, "training.kl.coef"),
        ({"warm_start": {"expert": "random"}}, {"warm_start": None}, ""),
        ({"league": {}}, {"league": None}, ""),
        ({"policies": ["a"]}, {"policies": {"b": {}, "c": {"player": "random"}}}, ""),
        ({"evaluation_config": {"temperature": 1}}, {"evaluation_config": {"temperature": 2}}, ""),
        ({"deepspeed": {"bf16": {"enabled": True}}}, {"deepspeed": None}, ""),
    ],
    ids=str,
)
def test_what_is_changed_loses_its_schedule_and_all_else_stays(
    had: dict[str, Any], given: dict[str, Any], lost: str
) -> None:
    games = [{"env": "lmgame/Sokoban-v0", "weight": SCHEDULE}, "lmgame/Maze-v0"]
    other = {"gamma": {"points": [[0, 1], [9, 0]]}, **({} if "env_config" in had else {"games": games})}
    config = LMGamePPOConfig().update_from_dict({**had, **other})
    again = LMGamePPOConfig().update_from_dict(config.to_dict()).run
    assert as_data(again) == {**as_data(again), **as_data(config.run)} and again.schedules == config.run.schedules
    assert pickle.loads(pickle.dumps(config.run)) == config.run
    changed = LMGamePPOConfig().update_from_dict(config.to_dict()).update_from_dict(given).run
    alone = LMGamePPOConfig().update_from_dict(given).run
    assert set(again.schedules) - set(changed.schedules) == ({lost} if lost else set())
    assert changed.games == again.games
    assert changed.env_config == alone.env_config
    (key,) = given
    for part in ("policies", "evaluation_config", "deepspeed", "league", "warm_start"):
        assert getattr(changed, part) == getattr(alone if part == key else again, part)
    if lost and not key.startswith("env"):
        assert changed.value(lost) == alone.value(lost)


def test_the_options_of_a_policy_have_its_own_and_no_schedules_of_these() -> None:
    own = {"lr": 1e-4, "training": {"policy_loss": {"clip_low": 0.1}}}
    config = (
        LMGamePPOConfig()
        .environment(**ROOM)
        .players({"a": {"language_model": {"max_tokens_per_turn": 7}}, "b": {}})
        .multi_agent(algorithm_config_overrides_per_module={"a": own})
        .training(lr={"points": [[0, 1e-3]]}, gamma={"points": [[0, 0.5]]})
    )
    a, b = config.run.policy("a"), config.run.policy("b")
    assert (a.lr, a.training.policy_loss.clip_low, a.language_model.max_tokens_per_turn) == (1e-4, 0.1, 7)
    assert (b.lr, b.training.policy_loss.clip_low, b.language_model.max_tokens_per_turn) == (1e-3, 0.2, 128)
    assert ("lr" in a.schedules, "gamma" in a.schedules, "lr" in b.schedules) == (False, True, True)
    assert (b.at({"gamma": 0.25}).gamma, b.gamma, b.at({}).name) == (0.25, 0.5, "b")
