"""LMGameGRPO is PPO's loop with other defaults and without a critic."""

from __future__ import annotations

import json

import pytest

from rllib_lmgame.algorithms.grpo import LMGameGRPO, LMGameGRPOConfig
from rllib_lmgame.algorithms.ppo import LMGamePPO
from rllib_lmgame.algorithms.validation import RunFacts
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.config.algorithms import find_entry


def config_of(**settings) -> LMGameGRPOConfig:
    return LMGameGRPOConfig().update_from_dict({"env": "lmgame/Sokoban-v0", **settings})


def test_it_compares_groups_of_eight_and_has_no_critic() -> None:
    config = config_of()
    config.validate()
    assert (config.run.token_ppo.advantage_estimator.type, config.run.text_rollouts.group_size) == ("grpo", 8)
    assert (config.use_kl_loss, config.entropy_coeff) == (False, 0.0)
    assert RunFacts(config).compares and not config.module_spec("player").model_config["critic"]
    assert config.algo_class is LMGameGRPO and issubclass(LMGameGRPO, LMGamePPO)


def test_it_is_found_by_its_name_and_reports_nothing_of_a_critic() -> None:
    entry = find_entry("LMGameGRPO")
    assert entry.algorithm_class() is LMGameGRPO and entry.config_class() is LMGameGRPOConfig
    assert "rl_iteration" in entry.metrics and "policy_loss" in entry.learner_metrics
    assert not [name for name in entry.learner_metrics if name.startswith("vf_")]


def test_a_checkpoints_configuration_keeps_its_defaults() -> None:
    again = LMGameGRPOConfig().update_from_dict(json.loads(json.dumps(config_of().run.as_yaml())))
    assert again.run.token_ppo == config_of().run.token_ppo
    assert config_of(text_rollouts={"format_penalty": -1.0}).run.text_rollouts.group_size == 8


def test_groups_of_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="`grpo` compares the episodes of a group; set at least 2"):
        config_of(text_rollouts={"group_size": 1}).validate()
    config_of(text_rollouts={"group_size": 1}, token_ppo={"advantage_estimator": "reinforce_pp"}).validate()
