"""The frozen reference model of the KL penalty."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule


def frozen_copy(
    module: LanguageModelRLModule, weights: Mapping[str, Any], device: torch.device | str
) -> LanguageModelRLModule:
    """A copy of the policy that is never trained and has no value function worth using.

    It is complete on every learner, whatever partitioning the policy has.

    Args:
        module: The policy, for its configuration and numerics.
        weights: Complete tensors by Hugging Face name.
        device: Where it is to live.
    """
    config: dict[str, Any] = dict(module.model_config)  # type: ignore[arg-type]
    config["options"] = dataclasses.asdict(
        dataclasses.replace(module.options, value_model="shared", gradient_checkpointing=False)
    )
    config["model_dir"] = module.model_dir
    copy = LanguageModelRLModule(
        observation_space=module.observation_space,
        action_space=module.action_space,
        inference_only=False,
        model_config=config,
    )
    copy.load_hf_state(weights)
    copy.requires_grad_(False)
    return copy.to(device=device, dtype=next(module.parameters()).dtype)
