"""Options in the forms that their types allow survive the ways a configuration is carried: through Tune (as a
dictionary, pickled), into a checkpoint (as JSON) and into RLlib's evaluation. All options take 6 s."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ray import cloudpickle

from rllib_lmgame.base.group import as_mapping
from rllib_lmgame.experiments.checks.check import CheckedExperiment, check_experiments, check_quickly
from rllib_lmgame.experiments.checks.resources import request_of
from rllib_lmgame.experiments.files.reading import load_text
from rllib_lmgame.experiments.search.spaces import to_tune
from rllib_lmgame.experiments.spec import make_specs

CONFIGS: list[tuple[str, dict[str, Any]]] = [
    (
        "LMGamePPO",
        {
            "language_model": {
                "tiny": {"num_kv_heads": 1, "initializer_range": None, "vocab_size": 300},
                "chat_template_kwargs": {"enable_thinking": False},
                "demonstrations": [{"observation": "1 + 1", "action": "2", "think": None}],
                "turn_suffix": "Turns left: {turns_left}",
            },
            "inference": {"engine": "rllib_lmgame.inference.options:Transformers", "engine_kwargs": {"seed": 1}},
            "training": {
                "advantage_estimator": {"type": "bilevel_gae", "turn_lambda": 0.5},
                "policy_loss": {"type": "gspo", "clip_low": 0.1, "clip_high": 0.3, "dual_clip": 3},
                "critic": {"warmup": {"type": "gradient", "iterations": 1}},
                "aggregation": {"type": "constant_length", "length": 500},
                "importance_sampling": {
                    "cap": 2,
                    "level": "turn",
                    "mask": {"low": 0.5, "high": 5, "level": "trajectory"},
                },
                "kl": {"loss_estimator": "k3", "reference": {"type": "ema", "decay": 0.9}},
                "adam_betas": [0, 0.5],
            },
            "data_selection": {
                "overlong": {"tokens": 130, "buffer": 8, "penalty": 0.5},
                "normalize_rewards": {"type": "game", "deviation": False},
            },
            "deepspeed": {"zero_optimization": {"stage": 2}},
            "lr": {"choice": [1e-5, [[0, 1e-4], [9, 1e-5]]]},
            "gamma": {"points": {"choice": [[[0, 1]], [[0, 0.9]]]}},
            "lambda": {"choice": [0.9, 0.95]},
            "entropy_coeff": [[0, 0.01], [1000, 0]],
            "seed": {"randint": [0, 9]},
        },
    ),
    (
        "LMGamePPO",
        {
            "training": {
                "advantage_estimator": "rllib_lmgame.learners.advantages:token_gae",
                "policy_loss": {
                    "clip_high": {"by": "env_runners/episode_return_mean", "values": [0.2, 0.3], "above": 1, "below": 0}
                },
                "critic": {"target": "gae", "lr": 1e-4, "clip": 0.2, "backbone_lr": None},
                "importance_sampling": None,
                "kl": {"coef": {"points": [[0, 0.1], [10, 0.01]]}, "reference": "ema"},
            },
            "language_model": {"lora": {"r": 4, "target_modules": ["q_proj"], "init": None}},
            "env_config": {"max_turns": {"by": "env_steps", "points": [[0, 5], [10, 9]], "type": "step"}},
            "warm_start": {"expert": "random", "stop_at": {"success": 0.25, "every": 10}},
            "evaluation_interval": 10,
            "evaluation_config": {"games": ["lmgame/TicTacToe-v0", {"env": "lmgame/Sokoban-v0", "episodes": 2}]},
            "lr": {"loguniform": [1e-6, 1e-4]},
            "num_cpus_per_learner": "auto",
        },
    ),
    (
        "LMGameGRPO",
        {
            "training": {"advantage_estimator": {"type": "gigpo", "divide_by_std": False}, "policy_loss": "cispo"},
            "text_rollouts": {"group_size": 8},
            "data_selection": {"zero_variance_groups": {"type": "drop", "max_refill": 2}, "normalize_rewards": "group"},
        },
    ),
    ("LMGameSFT", {"supervised": {"data": "talk.jsonl", "validation_share": 0}}),
    ("LMGameDPO", {"dpo": {"loss": {"type": "simpo", "margin": 1.0}}}),
    ("LMGameAgentEvol", {}),
    ("LMGameILQL", {}),
]

PLAYERS = [
    {
        "policies": {"player": None, "opponent": {"player": "minimax"}},
        "policy_mapping_fn": {"X": "player", "*": "opponent"},
    },
    {"policies": {"a": {"language_model": {"max_tokens_per_turn": 32}}, "b": {"player": "solver", "trained": False}}},
    {
        "policies": {"a": {}, "b": {"player": "rllib_lmgame.policies.scripted:RandomPlayer"}},
        "policy_mapping_fn": "tests_every_form:first_policy",
    },
    {
        "policies": {"a": {}, "b": {"player": "random"}, "c": {"trained": False}},
        "policy_mapping_fn": {"type": "versus", "opponents": {"b": 2, "c": 0.5}},
    },
    {"policies": ["a"], "policy_mapping_fn": "league"},
    {
        "policies": {"a": {}, "b": {}},
        "policy_mapping_fn": {"grid_search": ["shared", {"X": "a", "O": "b"}, {"X": "b", "O": "a"}]},
    },
    {"league": {"matchmaking": {"type": "pfsp_hard", "power": 3}}},
    {"league": {"averaged_snapshots": True}, "training": {"ema_decay": 0.9}},
]
GAMES = [
    {"env": "rllib_lmgame.envs.games.duels.tic_tac_toe:TicTacToe", "env_config": {"show_rules": False}},
    {
        "games": [
            {"env": "lmgame/Sokoban-v0", "env_config": {"split": "train"}, "weight": 0.5},
            {"env": "lmgame/Wordle-v0"},
        ]
    },
    {"games": {"choice": [["lmgame/Sokoban-v0"], ["lmgame/Wordle-v0"]]}},
]


@pytest.fixture(autouse=True)
def functions_by_import_path(tmp_path, monkeypatch) -> None:
    """A module and a file of data of the user's own."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": said, "reward": 1.5, "success": True, "item_id": "a"}))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests_every_form.py").write_text(
        "def first_policy(agent_id, episode=None, **kwargs):\n    return 'a'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def checked(settings) -> CheckedExperiment:
    """An experiment read from YAML text and checked as ``rllib train file`` does it."""
    experiments, source = load_text(yaml.safe_dump({"a": settings}), "x.yaml")
    (spec,) = make_specs(experiments, source)
    check_quickly([spec])
    return check_experiments([spec])[0]


def said_by(config):
    """What of a configuration is this package's own."""
    return as_mapping(config.run.written)


def check_carried(experiment: CheckedExperiment) -> None:
    """The configurations of an experiment after every way they are carried."""
    algorithm, fresh = experiment.algorithm, experiment.algorithm.cls.get_default_config
    assert request_of(experiment).bundles
    cloudpickle.loads(cloudpickle.dumps(to_tune(experiment.spec.config)))
    for config in experiment.configs:
        dictionary = cloudpickle.loads(cloudpickle.dumps(config.to_dict()))
        again = fresh().update_from_dict(dictionary)
        again.validate()
        assert said_by(again) == said_by(config)
        assert algorithm.cls.default_resource_request(dictionary).bundles  # type: ignore[attr-defined]
        again.get_evaluation_config_object()
        written = fresh().update_from_dict(json.loads(json.dumps(config.run.as_yaml())))
        for key in ("language_model", "inference", "text_rollouts", "training", "policies", "games"):
            assert getattr(written.run, key) == getattr(config.run, key)
        assert written.run.schedules == config.run.schedules
        assert seats_of(written) == seats_of(again) == seats_of(config)


def seats_of(config) -> list[str]:
    """Who plays the two seats of a game, in one episode."""
    mapping, episode = (
        config.agent_to_module_mapping(),
        {"episode": None, "agent_ids": ("player_0", "player_1"), "seed": 3},
    )
    return [mapping("player_0", role="X", **episode), mapping("player_1", role="O", **episode)]


@pytest.mark.parametrize(("algorithm", "config"), CONFIGS, ids=lambda each: each if isinstance(each, str) else "")
def test_options_in_every_form_are_carried(algorithm: str, config: dict[str, Any]) -> None:
    whole = {"env": "lmgame/FrozenLake-v0", **config}
    check_carried(checked({"run": algorithm, "stop": {"training_iteration": 1}, "config": whole}))


@pytest.mark.parametrize("part", [*PLAYERS, *GAMES], ids=lambda part: str(part)[:40])
def test_every_form_of_policies_seats_and_games_is_carried(part) -> None:
    config = part if "games" in part else {"env": "lmgame/TicTacToe-v0", **part}
    check_carried(checked({"run": "LMGamePPO", "stop": {"rl_iteration": 1}, "config": config}))
