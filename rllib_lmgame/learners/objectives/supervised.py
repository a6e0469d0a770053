"""Cross-entropy on the replies, and perhaps on what the game says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from rllib_lmgame.learners.data.batching import PackedBatch
from rllib_lmgame.learners.engines.torch_engine import POLICY
from rllib_lmgame.learners.objectives.base import LearnerSettings, Loss, ModuleUpdate, Objective


@dataclass(frozen=True)
class SupervisedObjective(Objective):
    """Cross-entropy on reply tokens: no value function, nothing of before the update, one pass over the rows.

    It takes ``num_minibatches`` steps, ``lr`` is the rate of all parameters, warmed up in ``lr_warmup_steps`` steps.
    """

    num_minibatches: int
    lr: float
    lr_warmup_steps: int = 0
    env_token_loss_weight: float = 0.0
    needs_old_policy: ClassVar[bool] = False
    learns_observations: ClassVar[bool] = True

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        own = settings.of_another_loss(
            num_minibatches=self.num_minibatches, env_token_loss_weight=self.env_token_loss_weight
        )
        return replace(own, lr_warmup_steps=self.lr_warmup_steps, num_epochs=1)

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        return {"temperature": 1.0, "with_values": False}

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """Cross-entropy, weighed as the rows say; ``confident_fraction`` counts tokens the policy gives more than half
        of the probability.
        """
        weights, size = update.column(pack, "action_weights", like=out["logprobs"]), update.minibatch
        # Tokens of weight 0 are context. Over the others, whatever these weigh: else a step's weights were relative.
        share = size.tokens / size.weighed if size is not None and size.weighed else 1.0
        loss = -(weights * out["logprobs"]).sum() * share
        sums = {
            "count": float(pack.num_actions),
            "policy_loss": loss,
            "total_loss": loss,
            "entropy": out["entropy"].sum(),
            "confident_fraction": (out["logprobs"].detach() > np.log(0.5)).float().sum(),
        }
        return loss, sums

    def trained_parts(self, update: ModuleUpdate) -> Collection[str]:
        return (POLICY,)
