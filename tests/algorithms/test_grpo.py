"""LMGameGRPO is PPO's loop with other defaults and without a critic."""

from __future__ import annotations

import json

from rllib_lmgame.algorithms.grpo import LMGameGRPOConfig


def config_of(**settings) -> LMGameGRPOConfig:
    return LMGameGRPOConfig().update_from_dict({"env": "lmgame/Sokoban-v0", **settings})


def test_a_checkpoints_configuration_keeps_its_defaults() -> None:
    again = LMGameGRPOConfig().update_from_dict(json.loads(json.dumps(config_of().run.as_yaml())))
    assert again.run.training == config_of().run.training
    assert config_of(text_rollouts={"format_penalty": -1.0}).run.text_rollouts.group_size == 8
