"""The teacher of on-policy distillation: a frozen model of any size that judges the policy's own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.learners.teacher_options import KEY, TeacherOptions
from rllib_lmgame.policies.model.files import model_directory
from rllib_lmgame.policies.model.network import PolicyNetwork


class Teacher:
    """Whole on every learner, on its device and in the policy's numerics, and never trained.

    Raises: ConfigError: it does not suit the policy.
    """

    def __init__(self, policy: PolicyNetwork, options: TeacherOptions, device: torch.device | str) -> None:
        dtype = str(next(policy.parameters()).dtype).removeprefix("torch.")
        own = policy.options.model_copy(
            update={
                "model": options.model,
                "dtype": policy.options.dtype if dtype == "float32" else dtype,
                "lora": None,
                "value_model": "shared",
                "gradient_checkpointing": False,
                "trust_remote_code": options.trust_remote_code,
            }
        )
        self.module = PolicyNetwork(own, model_directory(options.model, KEY), on_gpu=policy.on_gpu, critic=False)
        known, needed = (each.language_model.config.get_text_config().vocab_size for each in (self.module, policy))
        if known < needed:
            raise ConfigError(KEY, f"{options.model} knows {known} tokens, the policy {needed}")
        if self.module.layout is not policy.layout or (policy.shares and not self.module.shares):
            raise ConfigError(
                KEY,
                f"{options.model} reads rows as `{self.module.layout.value}`, the policy as `{policy.layout.value}`",
            )
        self.module.requires_grad_(False)
        self.module.eval()
        self.module.to(device)

    @torch.no_grad()
    def logprobs(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Of a micro-batch's action tokens, float32 ``[A]``; ``inputs`` as of the policy's own pass."""
        flags = {"with_entropy": False, "with_values": False}
        found: torch.Tensor = self.module({**inputs, **flags})["logprobs"]
        return found
