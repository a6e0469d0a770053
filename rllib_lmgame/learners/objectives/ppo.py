"""Token-level PPO."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from rllib_lmgame.learners import advantages as adv
from rllib_lmgame.learners.data.batching import NO_ROWS, PackedBatch
from rllib_lmgame.learners.engines.optim import PARTS, POLICY
from rllib_lmgame.learners.metrics import RunningMoments, explained_variance
from rllib_lmgame.learners.objectives.base import Loss, ModuleUpdate
from rllib_lmgame.learners.objectives.losses import kl_penalty, policy_loss, truncated_importance_weights, value_loss
from rllib_lmgame.learners.options import POPART
from rllib_lmgame.learners.settings import LearnerSettings


class PPOObjective:
    """Token-level PPO: clipped policy loss with importance weights, value loss, entropy, KL to the reference."""

    needs_old_policy = True
    lr: float | None = None

    def __init__(self) -> None:
        self._estimators: dict[str, adv.AdvantageEstimator] = {}
        self._restored: dict[str, Any] = {}

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        """The configured ones."""
        return settings

    def needs_groups(self, settings: LearnerSettings) -> bool:
        """What the advantage estimator says."""
        return adv.needs_groups(self._estimator(settings))

    @torch.no_grad()
    def record(
        self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: Mapping[str, Any]
    ) -> None:
        """Fill ``old_logprobs``, ``values``, ``bootstrap_values`` and, where they are used, ``ref_logprobs``."""
        ref = update.reference_logprobs(inputs) if self._wants_reference(update.settings) else None
        if update.batch is None or pack.num_actions + len(pack.bootstrap_slot) == 0:
            return
        columns = {
            "old_logprobs": out["logprobs"],
            "values": out["values"],
            "bootstrap_values": out["bootstrap_values"],
        }
        if ref is not None:
            columns["ref_logprobs"] = ref
        update.batch.put(pack, **{name: tensor.detach().float().cpu().numpy() for name, tensor in columns.items()})

    def prepare(self, update: ModuleUpdate) -> None:
        """Fill ``advantages`` and ``returns``."""
        settings, ranks, meter = update.settings, update.ranks, update.meter
        batch = update.batch or NO_ROWS
        inputs = adv.advantage_inputs(
            batch,
            gamma=settings.gamma,
            lam=settings.lam,
            ranks=ranks,
            with_reference=self._wants_reference(settings),
            baseline_decay=settings.ppo.baseline_decay,
        )
        if update.critic is not None:
            update.critic.prepare(update.batch, inputs, normalize=settings.ppo.value_normalization == POPART)
        estimator, raw = self._estimator(settings), self._advantages(inputs, settings)
        returns = adv.value_targets(estimator, inputs, raw, monte_carlo=settings.ppo.critic_target == "monte_carlo")
        normal = adv.normalize(
            raw,
            settings.ppo.normalize_advantages or ("none" if adv.own_scale(estimator) else "batch"),
            inputs.per_token(inputs.roles),
            floor=settings.ppo.advantage_std_floor,
            num_roles=max(1, len(inputs.role_names)),
            all_reduce=ranks.sum,
        )
        if update.batch is not None:
            update.batch.advantages, update.batch.returns = normal, returns.astype(np.float32)
        meter.before = {f"advantage_{name}": value for name, value in RunningMoments.of(raw, ranks).items()}
        meter.before["return_mean"] = RunningMoments.of(returns, ranks)["mean"]
        meter.before["vf_explained_var"] = explained_variance(batch.values, returns, ranks)

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        """No gradient reaches the backbone while only the critic learns."""
        return {
            "temperature": update.settings.temperature,
            "entropy_gradient": update.entropy_coefficient != 0.0,
            "detach_backbone": _only_critic(update),
        }

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """The sum over tokens of all parts of the loss, those of the policy left out while only the critic learns."""
        settings, meter = update.settings, update.meter
        ppo, logprobs, only_critic = settings.ppo, out["logprobs"], _only_critic(update)
        old, rollout, advantages, returns, old_values = (
            update.column(pack, name, logprobs)
            for name in ("old_logprobs", "rollout_logprobs", "advantages", "returns", "values")
        )
        weights, sums = truncated_importance_weights(old, rollout, ppo.importance_cap)
        policy, policy_sums = policy_loss(
            logprobs, old, advantages, ppo.clip_low, ppo.clip_high, ppo.dual_clip, weights
        )
        values, units = out["values"], update.value_units(pack, logprobs)
        if units is not None:
            values, old_values, returns = units.normal_output(values), units.normal(old_values), units.normal(returns)
        value, value_sums = value_loss(values, old_values, returns, ppo.value_clip)
        total = settings.vf_loss_coeff * value.sum()
        if not only_critic:
            total = total + policy.sum() - update.entropy_coefficient * out["entropy"].sum()
        sums |= policy_sums | value_sums
        sums |= {
            "count": float(pack.num_actions),
            "policy_loss": policy.sum(),
            "vf_loss": value.sum(),
            "entropy": out["entropy"].sum(),
            "total_loss": total,
        }
        if settings.use_kl_loss:
            ref = update.column(pack, "ref_logprobs", logprobs)
            kl, kl_sums = kl_penalty(logprobs, ref, ppo.kl_estimator, ppo.kl_gradient)
            if not only_critic:
                total = total + update.kl_coefficient * kl.sum()
            sums |= {"mean_kl_loss": kl_sums["kl"], "total_loss": total}
        if meter.first_minibatch:
            meter.max("first_minibatch_ratio_error", (torch.exp(logprobs.detach() - old) - 1.0).abs())
        return total, sums

    def trained_parts(self, update: ModuleUpdate) -> Collection[str]:
        """All of them; without the policy while the critic warms up."""
        return [part for part in PARTS if part != POLICY or not _only_critic(update)]

    def get_state(self) -> dict[str, Any]:
        """What the advantage estimators remember, by name."""
        states = {name: adv.estimator_state(name, estimator) for name, estimator in self._estimators.items()}
        return {"estimators": self._restored | {name: state for name, state in states.items() if state is not None}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Undo :meth:`get_state`."""
        self._estimators.clear()
        self._restored = dict(state["estimators"])

    def _estimator(self, settings: LearnerSettings) -> adv.AdvantageEstimator:
        """The configured estimator; always the same object, so that it may remember something.

        One for each name: an objective given to an update serves policies that may be configured differently.
        """
        name = _label(settings.ppo.advantage_estimator)
        if name not in self._estimators:
            self._estimators[name] = adv.resolve_estimator(settings.ppo.advantage_estimator)
            if name in self._restored:
                adv.restore_estimator(self._estimators[name], self._restored.pop(name))
        return self._estimators[name]

    def _wants_reference(self, settings: LearnerSettings) -> bool:
        """Whether the penalty or the estimator needs the reference model's log-probabilities."""
        return settings.use_kl_loss or adv.needs_reference(self._estimator(settings))

    def _advantages(self, inputs: adv.AdvantageInputs, settings: LearnerSettings) -> np.ndarray:
        """What the estimator gives, float32 ``[A]``.

        Raises:
            ValueError: It has another shape, or numbers that are not finite.
        """
        advantages = np.asarray(self._estimator(settings)(inputs), np.float32)
        if advantages.shape != inputs.rewards.shape:
            name, count = _label(settings.ppo.advantage_estimator), len(inputs.rewards)
            raise ValueError(
                f"advantage estimator `{name}` gave an array of shape {advantages.shape} for {count} action tokens"
            )
        if not np.isfinite(advantages).all():
            raise ValueError(
                f"advantage estimator `{_label(settings.ppo.advantage_estimator)}` gave numbers that are not finite"
            )
        return advantages


def _label(choice: str | Mapping[str, Any]) -> str:
    """A name alone, or with its options: what tells estimators apart."""
    return choice if isinstance(choice, str) else json.dumps(choice, sort_keys=True)


def _only_critic(update: ModuleUpdate) -> bool:
    """Whether the critic warms up and the policy rests."""
    return update.num_updates < update.settings.ppo.critic_warmup_iterations
