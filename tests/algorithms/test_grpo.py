"""LMGameGRPO is PPO's loop with other defaults and without a critic."""

from __future__ import annotations

import json

from rllib_lmgame.algorithms.grpo import LMGameGRPO, LMGameGRPOConfig
from rllib_lmgame.algorithms.ppo import LMGamePPO


def config_of(**settings) -> LMGameGRPOConfig:
    return LMGameGRPOConfig().update_from_dict({"env": "lmgame/Sokoban-v0", **settings})


def test_it_compares_groups_of_eight_and_has_no_critic() -> None:
    config = config_of()
    config.validate()
    assert (config.run.training.advantage_estimator.type, config.run.text_rollouts.group_size) == ("grpo", 8)
    assert (config.use_kl_loss, config.entropy_coeff) == (False, 0.0)
    assert config.run.compares and not config.module_spec("player").model_config["critic"]
    assert config.algo_class is LMGameGRPO and issubclass(LMGameGRPO, LMGamePPO)


def test_a_checkpoints_configuration_keeps_its_defaults() -> None:
    again = LMGameGRPOConfig().update_from_dict(json.loads(json.dumps(config_of().run.as_yaml())))
    assert again.run.training == config_of().run.training
    assert config_of(text_rollouts={"format_penalty": -1.0}).run.text_rollouts.group_size == 8
