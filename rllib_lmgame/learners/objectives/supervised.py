"""Cross-entropy on the replies, and values of tokens beside it, from logged episodes.

Values are those of LMRL-Gym (2311.18232): Monte-Carlo returns, CQL and ILQL. Time runs over the tokens of replies; what
the game says in between is context. The reward of a reply is on its last token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from rllib_lmgame.learners.advantages.base import discounted_sums, next_values
from rllib_lmgame.learners.data.batching import PackedBatch
from rllib_lmgame.learners.engines.torch_engine import PARTS, POLICY
from rllib_lmgame.learners.objectives.base import LearnerSettings, Loss, ModuleUpdate, Objective
from rllib_lmgame.learners.options import ExpectileValueOptions, ReturnValueOptions, TargetValueOptions


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


@dataclass(frozen=True, kw_only=True)
class ActionValueObjective(SupervisedObjective):
    """Losses of values beside the policy's cross-entropy, all of them means over tokens of replies.

    Of a token ``a`` in the state ``s`` before it, and ``s'``, ``a'`` of the next one; targets have no gradient:

    - Of each head ``(Q(s, a) - y)^2 / 2``, and ``cql_weight`` times the cross-entropy of ``Q(s, .)`` with ``a``.
    - ``y`` is the discounted sum of rewards from here on (``LMGameMC``), ``r + gamma min Q'(s', a')``
      (``LMGameCQL``), or ``r + gamma V(s')`` (``LMGameILQL``). Behind the last token of an episode that ended there is
      nothing; of one that was cut short ILQL takes ``V`` of its last state, CQL the last token's own ``Q'``.
    - ILQL's ``V``: ``|tau - 1[u < 0]| u^2 / 2`` with ``u = min Q'(s, a) - V(s)``.

    ``Q'`` are the targets. Under ``y`` values are those of the weights before the minibatch's step.
    """

    options: ReturnValueOptions
    needs_old_policy: ClassVar[bool] = True
    records_each_step: ClassVar[bool] = True

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        settings = super().adapted(settings)
        critic = settings.ppo.critic.model_copy(update={"lr": self.lr, "backbone_lr": None})
        return replace(settings, ppo=settings.ppo.model_copy(update={"critic": critic}))

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        held = self.options.policy_weight == 0
        return super().forward_flags(update) | {"with_action_values": True, "detach_backbone": held}

    def prepares_first(self, settings: LearnerSettings) -> bool:
        return not isinstance(self.options, TargetValueOptions)

    def record(
        self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: Mapping[str, Any]
    ) -> None:
        if not pack.num_actions:
            return
        if isinstance(self.options, ExpectileValueOptions):
            last = out["last_v"].detach().float().cpu().numpy()
            update.batch.put(pack, values=out["v"].detach().float().cpu().numpy(), bootstrap_values=last)
        elif isinstance(self.options, TargetValueOptions):
            update.batch.put(pack, values=out["target_q"].float().cpu().numpy())

    def prepare(self, update: ModuleUpdate) -> None:
        """What the values of the minibatch are to become; NaN where it has no token."""
        batch, gamma = update.batch, self.options.gamma
        offsets, rewards = batch.trajectory_offsets, batch.rewards
        if not isinstance(self.options, TargetValueOptions):
            batch.returns[:] = discounted_sums(rewards, gamma, offsets)
            return
        last = np.where(batch.needs_bootstrap, batch.bootstrap_values, 0.0)
        if not isinstance(self.options, ExpectileValueOptions):
            own = batch.values[np.maximum(offsets[1:] - 1, 0)]
            last = np.where(batch.needs_bootstrap, own, 0.0)
        batch.returns[:] = rewards + gamma * next_values(batch.values, last, offsets)

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """The sum over tokens of all losses, whose means are in the figures."""
        options = self.options
        imitation, sums = super().loss(update, pack, out)
        target = update.column(pack, "returns", like=out["q"])
        terms = {"q_loss": 0.5 * (out["q"] - target).square().sum(), "cql_loss": -out["q_logprobs"].sum()}
        loss = options.policy_weight * imitation + terms["q_loss"] + options.cql_weight * terms["cql_loss"]
        if isinstance(options, ExpectileValueOptions):
            above = out["target_q"].detach() - out["v"]
            weight = torch.where(above.detach() < 0, 1 - options.tau, options.tau)
            terms["v_loss"] = 0.5 * (weight * above.square()).sum()
            loss = loss + terms["v_loss"] + 0.0 * out["last_v"].sum()
            terms["v_mean"] = out["v"].sum()
        terms |= {"q_mean": out["q"].amin(0).sum() if pack.num_actions else out["q"].sum(), "target_mean": target.sum()}
        return loss, sums | terms | {"total_loss": loss}

    def stepped(self, module: Any) -> None:
        """The slow copies follow."""
        if isinstance(self.options, TargetValueOptions):
            module.follow_values(self.options.target_rate)

    def trained_parts(self, update: ModuleUpdate) -> Collection[str]:
        """All; the policy not where its cross-entropy counts nothing."""
        return PARTS if self.options.policy_weight else [part for part in PARTS if part != POLICY]
