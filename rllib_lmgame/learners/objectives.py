"""What an update minimises: token-level PPO, or cross-entropy on the replies.

A learner holds one objective at a time and asks it, in this order: what of the settings it changes, what it has to know of the
policy before the first step, how to run the forward pass, and for the loss of each micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch

from rllib_lmgame.learners.advantages import (
    advantage_inputs,
    monte_carlo_returns,
    needs_groups,
    needs_reference,
    normalize,
    resolve_estimator,
    token_gae,
)
from rllib_lmgame.learners.batching import NO_ROWS, PackedBatch, TokenBatch
from rllib_lmgame.learners.losses import kl_penalty, policy_loss, truncated_importance_weights, value_loss
from rllib_lmgame.learners.metrics import RunningMoments, UpdateMeter, explained_variance
from rllib_lmgame.learners.settings import LearnerSettings

if TYPE_CHECKING:
    from rllib_lmgame.learners.learner import LMGameLearner

Loss = tuple[torch.Tensor, dict[str, Any]]
"""Sum of the loss over the action tokens of a micro-batch, and sums for the metrics."""


@dataclass(frozen=True)
class ModuleUpdate:
    """One update of one module, as its objective sees it.

    Attributes:
        learner: Whose module is trained.
        module_id: Which one.
        settings: Those of this update.
        batch: The rows; ``None`` on a learner that has none and takes part for the others' sake.
        meter: Collects the figures.
    """

    learner: LMGameLearner
    module_id: str
    settings: LearnerSettings
    batch: TokenBatch | None
    meter: UpdateMeter

    def column(self, pack: PackedBatch, name: str, like: torch.Tensor) -> torch.Tensor:
        """A flat array at the action tokens of ``pack``, on the device of ``like``."""
        if self.batch is None or pack.num_actions == 0:
            return torch.zeros(pack.num_actions, device=like.device)
        return torch.from_numpy(getattr(self.batch, name)[pack.token_slot]).to(like.device, non_blocking=True)


class Objective(Protocol):
    """What one update minimises.

    Attributes:
        looks_before: Whether it needs figures of the policy as it was before the update. If so :meth:`record` sees every
            micro-batch and then :meth:`prepare` is called, before the first step; otherwise neither is.
    """

    looks_before: ClassVar[bool]

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        """The settings of an update with this objective, from the configured ones."""

    def needs_groups(self, settings: LearnerSettings) -> bool:
        """Whether the trajectories of a group must be in one minibatch of one learner."""

    def record(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: dict[str, Any]) -> None:
        """Keep what is needed of a forward pass of the policy before the update."""

    def prepare(self, update: ModuleUpdate) -> None:
        """Every micro-batch is recorded. All learners take part."""

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        """Arguments of the forward pass with gradient."""

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """Loss of one micro-batch from the outputs of its forward pass."""

    def rests(self, update: ModuleUpdate, is_value: bool) -> bool:
        """Whether the value function's parameters (``is_value``), or the policy's, are not trained."""


class PPOObjective:
    """Token-level PPO: clipped policy loss with importance weights, value loss, entropy, KL to the reference."""

    looks_before: ClassVar[bool] = True

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        """The configured ones."""
        return settings

    def needs_groups(self, settings: LearnerSettings) -> bool:
        """What the advantage estimator says."""
        return needs_groups(resolve_estimator(settings.ppo.advantage_estimator))

    @torch.no_grad()
    def record(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: dict[str, Any]) -> None:
        """Fill ``old_logprobs``, ``values``, ``bootstrap_values`` and, with a KL penalty, ``ref_logprobs``."""
        ref = None
        if _wants_reference(update.settings):
            flags = {"temperature": update.settings.temperature, "with_entropy": False, "with_values": False}
            ref = update.learner.reference(update.module_id).forward_train(inputs | flags)["logprobs"]
        if update.batch is None or pack.num_actions + len(pack.bootstrap_slot) == 0:
            return
        columns = {"old_logprobs": out["logprobs"], "values": out["values"], "bootstrap_values": out["bootstrap_values"]}
        if ref is not None:
            columns["ref_logprobs"] = ref
        update.batch.put(pack, **{name: tensor.detach().float().cpu().numpy() for name, tensor in columns.items()})

    def prepare(self, update: ModuleUpdate) -> None:
        """Fill ``advantages`` and ``returns``."""
        settings, ranks, meter = update.settings, update.learner.ranks, update.meter
        b = update.batch or NO_ROWS
        estimator = resolve_estimator(settings.ppo.advantage_estimator)
        inputs = advantage_inputs(b, gamma=settings.gamma, lam=settings.lam, ranks=ranks, with_reference=_wants_reference(settings))
        raw = _checked(estimator(inputs), len(inputs.rewards), settings.ppo.advantage_estimator)
        if settings.ppo.critic_target == "monte_carlo":
            returns = monte_carlo_returns(inputs)
        else:  # The lambda return, whatever the advantages are.
            returns = (raw if estimator is token_gae else token_gae(inputs)) + b.values
        mode, floor = settings.ppo.normalize_advantages, settings.ppo.advantage_std_floor
        roles = inputs.per_token(inputs.roles)
        normal = normalize(raw, mode, roles, floor=floor, num_roles=max(1, len(inputs.role_names)), all_reduce=ranks.sum)
        if update.batch is not None:
            update.batch.advantages, update.batch.returns = normal, returns.astype(np.float32)
        meter.before = {f"advantage_{name}": value for name, value in RunningMoments.of(raw, ranks).items()}
        meter.before["return_mean"] = RunningMoments.of(returns, ranks)["mean"]
        meter.before["vf_explained_var"] = explained_variance(b.values, returns, ranks)

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        """See :class:`Objective`; no gradient reaches the backbone while only the critic learns."""
        return {
            "temperature": update.settings.temperature,
            "entropy_gradient": update.learner.entropy_coefficient(update.module_id) != 0.0,
            "detach_backbone": _only_critic(update),
        }

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """See :class:`Objective`."""
        settings, learner, meter = update.settings, update.learner, update.meter
        ppo, logprobs, only_critic = settings.ppo, out["logprobs"], _only_critic(update)
        old, rollout, advantages, returns, old_values = (
            update.column(pack, name, logprobs) for name in ("old_logprobs", "rollout_logprobs", "advantages", "returns", "values")
        )
        weights, sums = truncated_importance_weights(old, rollout, ppo.importance_cap)
        policy, policy_sums = policy_loss(logprobs, old, advantages, ppo.clip_low, ppo.clip_high, ppo.dual_clip, weights)
        value, value_sums = value_loss(out["values"], old_values, returns, ppo.value_clip)
        total = settings.vf_loss_coeff * value.sum()
        if not only_critic:
            total = total + policy.sum() - learner.entropy_coefficient(update.module_id) * out["entropy"].sum()
        sums |= policy_sums | value_sums
        sums |= {
            "count": float(pack.num_actions),
            "policy_loss": policy.sum(),
            "vf_loss": value.sum(),
            "entropy": out["entropy"].sum(),
            "total_loss": total,
        }
        if settings.use_kl_loss:
            kl, kl_sums = kl_penalty(logprobs, update.column(pack, "ref_logprobs", logprobs), ppo.kl_estimator, ppo.kl_gradient)
            if not only_critic:
                total = total + float(learner.curr_kl_coeffs_per_module[update.module_id]) * kl.sum()
            sums |= {"mean_kl_loss": kl_sums["kl"], "total_loss": total}
        if meter.first_minibatch:
            meter.max("first_minibatch_ratio_error", (torch.exp(logprobs.detach() - old) - 1.0).abs())
        return total, sums

    def rests(self, update: ModuleUpdate, is_value: bool) -> bool:
        """See :class:`Objective`."""
        return not is_value and _only_critic(update)


@dataclass(frozen=True)
class SupervisedObjective:
    """Cross-entropy on reply tokens: no value function, nothing to know from before the update, one pass over the rows.

    Attributes:
        num_minibatches: Optimizer steps.
        lr: Learning rate of all parameters.
        lr_warmup_steps: Steps of linear warm-up.
    """

    num_minibatches: int
    lr: float
    lr_warmup_steps: int = 0
    looks_before: ClassVar[bool] = False

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        """The configured ones, with its own steps and without what only PPO has."""
        ppo = replace(settings.ppo, num_minibatches=self.num_minibatches, critic_warmup_iterations=0, ema_decay=None)
        return replace(settings, ppo=ppo, lr_warmup_steps=self.lr_warmup_steps, num_epochs=1, use_kl_loss=False)

    def needs_groups(self, settings: LearnerSettings) -> bool:
        """A reply is learned for itself."""
        return False

    def record(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: dict[str, Any]) -> None:
        """Nothing to keep."""

    def prepare(self, update: ModuleUpdate) -> None:
        """Nothing to prepare."""

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        """See :class:`Objective`."""
        return {"temperature": 1.0, "with_values": False}

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """See :class:`Objective`; ``confident_fraction`` counts tokens the policy gives more than half of the probability."""
        loss = -out["logprobs"].sum()
        sums = {
            "count": float(pack.num_actions),
            "policy_loss": loss,
            "total_loss": loss,
            "entropy": out["entropy"].sum(),
            "confident_fraction": (out["logprobs"].detach() > np.log(0.5)).float().sum(),
        }
        return loss, sums

    def rests(self, update: ModuleUpdate, is_value: bool) -> bool:
        """See :class:`Objective`."""
        return is_value


def _only_critic(update: ModuleUpdate) -> bool:
    """Whether the critic warms up and the policy rests."""
    return update.learner.num_updates(update.module_id) < update.settings.ppo.critic_warmup_iterations


def _wants_reference(settings: LearnerSettings) -> bool:
    """Whether the penalty or the estimator needs the reference model's log-probabilities."""
    return settings.use_kl_loss or needs_reference(resolve_estimator(settings.ppo.advantage_estimator))


def _checked(advantages: Any, tokens: int, name: str) -> np.ndarray:
    """What an estimator gave, as float32 ``[A]``.

    Raises:
        ValueError: It has another shape.
    """
    array = np.asarray(advantages, np.float32)
    if array.shape != (tokens,):
        raise ValueError(f"advantage estimator `{name}` gave an array of shape {array.shape} for {tokens} action tokens")
    return array
