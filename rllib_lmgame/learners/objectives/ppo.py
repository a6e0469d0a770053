"""Token-level PPO, and which action tokens of an update count how much.

Importance weights correct for the sampler's numerics and its age. They are known before the first step, so they are
made once for the batch; a turn or a trajectory counts as a whole, however it is packed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.registry import ESTIMATORS, POLICY_LOSSES
from rllib_lmgame.learners import advantages as adv
from rllib_lmgame.learners.data.batching import PackedBatch, TokenBatch
from rllib_lmgame.learners.engines.torch_engine import PARTS, POLICY
from rllib_lmgame.learners.losses.policy import (
    MAX_LOG_RATIO,
    PolicyTerms,
    k3_estimate,
    kl_penalty,
    token_losses,
    value_loss,
)
from rllib_lmgame.learners.metrics import explained_variance, moments
from rllib_lmgame.learners.objectives.base import LearnerSettings, Loss, ModuleUpdate, Objective
from rllib_lmgame.learners.options import ImportanceSamplingOptions, TeacherOptions

ALL = slice(None)
STD_FLOOR = 0.01
"""Least divisor of advantages, in scaled rewards: where all returns are equal, what is left is the critic's error."""


def importance_weights(
    batch: TokenBatch,
    options: ImportanceSamplingOptions | None,
    *,
    to_sampler: bool = False,
    tokens: np.ndarray | slice = ALL,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``min(p_old / p_rollout, cap)``, 0 where ``mask`` leaves the ratio out; which are capped, and which masked.

    Float64 and bool, ``[A]``; without ``options`` all weights are 1. Truncated importance sampling (Ionides 2008) of
    tokens or sequences, with the masks of IcePop (2510.18855). An unknown ratio (NaN) stays unknown. ``to_sampler``:
    the policy loss has the ratio itself, and only the mask is left. Of some ``tokens`` alone, where each counts for
    itself.
    """
    gap = batch.old_logprobs[tokens].astype(np.float64) - batch.rollout_logprobs[tokens]
    options = options or ImportanceSamplingOptions(cap=None)
    cap, mask = options.cap, options.mask
    weights, capped, masked = np.ones_like(gap), np.zeros(len(gap), bool), np.zeros(len(gap), bool)
    if cap is not None and not to_sampler:
        ratio = ratio_of(gap, batch, options.level)
        weights, capped = np.minimum(ratio, cap), ratio > cap
    if mask is not None:
        compared = ratio_of(gap, batch, mask.level)
        masked = (compared < mask.low) | (compared > mask.high)
    return np.where(masked, 0.0, weights), capped, masked


def ratio_of(gap: np.ndarray, batch: TokenBatch, level: str) -> np.ndarray:
    """``exp`` of the log ratios ``gap`` (float64 ``[A]``), of each token or of what it belongs to, float64 ``[A]``.

    ``turn`` and ``trajectory`` take the product over its tokens, with ``_geometric`` their geometric mean.
    """
    unit_name, _, mean = level.partition("_")
    if unit_name != "token":
        unit = {"turn": batch.turn, "trajectory": batch.trajectory}[unit_name]
        sums = np.bincount(unit, weights=gap)
        if mean:
            sums /= np.maximum(1, np.bincount(unit))
        gap = sums[unit]
    return np.exp(np.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def correct_for_sampler(update: ModuleUpdate, pack: PackedBatch | None = None) -> None:
    """Fill ``importance_weights`` of a batch with ``old_logprobs``, or of those of ``pack``.

    Of the whole batch with their figures, means over the tokens of all learners; then all call.
    """
    ppo, batch, tokens = update.settings.ppo, update.batch, ALL if pack is None else pack.token_slot
    found = importance_weights(batch, ppo.importance_sampling, to_sampler=ppo.policy_loss.to_sampler, tokens=tokens)
    batch.importance_weights[tokens] = found[0]
    if pack is None:
        gap = np.abs(batch.old_logprobs.astype(np.float64) - batch.rollout_logprobs)
        count, *totals = update.ranks.sum([len(gap), *(np.sum(column) for column in (*found, gap))]).tolist()
        names = ("importance_weight", "importance_capped_fraction", "importance_masked_fraction", "logprob_diff_mean")
        update.meter.before |= {name: total / max(count, 1.0) for name, total in zip(names, totals, strict=True)}


def distil(update: ModuleUpdate, teacher: TeacherOptions) -> None:
    """Add the teacher's verdict to ``advantages``, or put it in their place; all learners call.

    A token's is ``-c (log pi_old - log pi_teacher)``, whose expectation is the negative reverse KL divergence:
    on-policy distillation as verl and tinker have it.
    """
    batch = update.batch
    if update.ask_teacher is not None:
        with update.ranks.all_or_none():
            if batch.num_rows:
                batch.teacher_logprobs = update.ask_teacher(batch)
    gap = batch.old_logprobs.astype(np.float64) - batch.teacher_logprobs
    game = batch.advantages if teacher.game else 0.0
    batch.advantages = (game - teacher.coefficient * gap).astype(np.float32)
    update.meter.before["teacher_kl"] = moments(gap, update.ranks)["mean"]


class PPOObjective(Objective):
    """Token-level PPO: clipped policy loss with importance weights, value loss, entropy, KL to the reference."""

    learns_observations = True

    def __init__(self) -> None:
        self._memories: dict[str, dict[str, Any]] = {}

    def needs_groups(self, settings: LearnerSettings) -> bool:
        return settings.ppo.compares is not None

    def needs_critic(self, settings: LearnerSettings) -> bool:
        return settings.ppo.needs_critic

    @torch.no_grad()
    def record(
        self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: Mapping[str, Any]
    ) -> None:
        """Fill ``old_logprobs`` and, where they are used, ``values``, ``bootstrap_values`` and ``ref_logprobs``."""
        ref = update.reference_logprobs(inputs) if update.settings.ppo.needs_reference else None
        teacher = None if update.teacher_logprobs is None else update.teacher_logprobs(inputs)
        if pack.num_actions + len(pack.bootstrap_slot) == 0:
            return
        columns = {"old_logprobs": out["logprobs"]}
        if self.needs_critic(update.settings):
            columns |= {name: out[name] for name in ("values", "bootstrap_values")}
        if ref is not None:
            columns["ref_logprobs"] = ref
        if teacher is not None:
            columns["teacher_logprobs"] = teacher
        update.batch.put(pack, **{name: tensor.detach().float().cpu().numpy() for name, tensor in columns.items()})
        if update.streams:
            correct_for_sampler(update, pack)

    def prepares_first(self, settings: LearnerSettings) -> bool:
        """Without a critic and a penalty in the reward, if each token has an importance weight of its own.

        Not for a class or an estimator of somebody's own, which may read what is recorded.
        """
        ppo, importance = settings.ppo, settings.ppo.importance_sampling or ImportanceSamplingOptions(cap=None)
        levels = {importance.level} if importance.cap is not None else set()
        levels |= {importance.mask.level} if importance.mask is not None else set()
        return (
            type(self) is PPOObjective
            and ppo.advantage_estimator.type in ESTIMATORS
            and not self.needs_critic(settings)
            and (ppo.kl is None or ppo.kl.as_ == "loss")
            and settings.teacher is None
            and levels <= {"token"}
        )

    def streamed(self, update: ModuleUpdate) -> None:
        correct_for_sampler(update)

    def prepare(self, update: ModuleUpdate) -> None:
        """Fill ``advantages`` and, for a critic, ``returns``."""
        settings, ranks, meter = update.settings, update.ranks, update.meter
        inputs, critic = self._inputs(update), self.needs_critic(settings)
        estimator: adv.Estimator = settings.ppo.advantage_estimator
        raw = checked_advantages(estimator, inputs)
        monte_carlo = not critic or settings.ppo.critic.target == "monte_carlo"
        returns = estimator.value_targets(inputs, monte_carlo=monte_carlo)
        mode = settings.ppo.normalize_advantages or ("none" if estimator.own_scale else "batch")
        normal = adv.normalize(raw, mode, inputs, floor=STD_FLOOR)
        batch, ppo = update.batch, settings.ppo
        batch.sequence = batch.stretches(ppo.policy_loss.sequence)
        batch.loss_weights = ppo.aggregation.weights(batch)
        if not update.streams:
            correct_for_sampler(update)
        batch.advantages, batch.returns = normal, returns.astype(np.float32)
        if settings.teacher is not None:
            distil(update, settings.teacher)
        meter.before |= {f"advantage_{name}": value for name, value in moments(raw, ranks).items()}
        meter.before["return_mean"] = moments(returns, ranks)["mean"]
        if critic:
            meter.before["vf_explained_var"] = explained_variance(inputs.values, returns, ranks)

    def has_gradient(self, update: ModuleUpdate) -> bool:
        """Not where every advantage is exactly 0 and nothing but a policy loss of this package learns."""
        settings = update.settings
        if settings.ppo.kl is not None or update.entropy_coefficient != 0.0 or self.needs_critic(settings):
            return True
        if type(self) is not PPOObjective or settings.ppo.policy_loss.type not in POLICY_LOSSES:
            return True
        return bool(update.ranks.max(np.abs(update.batch.advantages).max(initial=0.0)) > 0.0)

    def critic_targets(self, update: ModuleUpdate) -> np.ndarray:
        """The returns that the estimator and the value loss are about, float32 ``[A]``, behind :meth:`prepare`."""
        estimator: adv.Estimator = update.settings.ppo.advantage_estimator
        return estimator.value_targets(self._inputs(update), monte_carlo=True)

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        """No gradient reaches the backbone while only the critic learns."""
        return {
            "temperature": update.settings.temperature,
            "entropy_gradient": update.entropy_coefficient != 0.0,
            "detach_backbone": update.critic_warms_up,
            "with_values": self.needs_critic(update.settings),
        }

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """Summed over tokens, the policy's weighted as they are averaged, and left out while only the critic learns."""
        settings, meter = update.settings, update.meter
        ppo, logprobs, batch = settings.ppo, out["logprobs"], update.batch
        if len(batch.shown) and batch.shown[pack.token_slot].any():
            batch.put(pack, entropies=out["entropy"].detach().float().cpu().numpy())
        names = ("old_logprobs", "rollout_logprobs", "advantages", "sequence")
        terms = PolicyTerms(logprobs=logprobs, **{name: update.column(pack, name, logprobs) for name in names})
        policy, sums = token_losses(ppo.policy_loss, terms)
        policy = policy * update.column(pack, "importance_weights", logprobs)
        shares = update.column(pack, "loss_weights", logprobs) * ppo.aggregation.per_token(update.minibatch)
        total = logprobs.new_zeros(())
        if self.needs_critic(settings):
            returns, before = (update.column(pack, name, logprobs) for name in ("returns", "values"))
            value, value_sums = value_loss(out["values"], before, returns, ppo.critic.clip)
            total = settings.vf_loss_coeff * value.sum()
            sums |= value_sums | {"vf_loss": value.sum()}
        if not update.critic_warms_up:
            total = total + (shares * (policy - update.entropy_coefficient * out["entropy"])).sum()
        sums |= {
            "count": float(pack.num_actions),
            "policy_loss": (shares * policy).sum(),
            "entropy": out["entropy"].sum(),
            "total_loss": total,
        }
        if ppo.kl is not None:
            ref, now, in_loss = update.column(pack, "ref_logprobs", logprobs), logprobs.detach(), ppo.kl.as_ == "loss"
            if not update.critic_warms_up and in_loss:
                kl = kl_penalty(logprobs, ref, ppo.kl.loss_estimator)
                total = total + update.kl_coefficient * (shares * kl).sum()
            sums |= {"mean_kl_loss": (k3_estimate(now, ref) if in_loss else now - ref).sum(), "total_loss": total}
        if meter.first_minibatch:
            meter.max("first_minibatch_ratio_error", (torch.exp(logprobs.detach() - terms.old_logprobs) - 1.0).abs())
        return total, sums

    def trained_parts(self, update: ModuleUpdate) -> Collection[str]:
        return [part for part in PARTS if part != POLICY or not update.critic_warms_up]

    def get_state(self) -> dict[str, Any]:
        """What estimators have put into ``memory``, by their names. Raises: ConfigError: JSON cannot hold it."""
        try:
            return {"estimators": json.loads(json.dumps(self._memories))}
        except (TypeError, ValueError) as error:
            raise ConfigError(ESTIMATORS.key, f"what it puts into `memory` cannot be saved as JSON: {error}") from error

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._memories = {name: dict(kept) for name, kept in state["estimators"].items()}

    def _inputs(self, update: ModuleUpdate) -> adv.AdvantageInputs:
        """What is recorded of the batch, with a penalty in the rewards if that is its place. All learners take part."""
        settings, estimator = update.settings, update.settings.ppo.advantage_estimator
        memory = self._memories.setdefault(estimator.type, {})
        if estimator.keeps_baseline and memory.get("rewards") != settings.rewards:  # Resumed with others.
            memory = self._memories[estimator.type] = {"rewards": settings.rewards}
        inputs = adv.advantage_inputs(
            update.batch,
            gamma=settings.gamma,
            lam=settings.lam,
            ranks=update.ranks,
            with_reference=settings.ppo.needs_reference,
            memory=memory,
        )
        kl = settings.ppo.kl
        if kl is not None and kl.as_ == "reward":
            assert inputs.ref_logprobs is not None
            # Of the policy before the update, without a gradient (Ziegler et al. 2019, eq. 2).
            gap = inputs.old_logprobs.astype(np.float64) - inputs.ref_logprobs
            inputs = replace(inputs, rewards=inputs.rewards - update.kl_coefficient * gap)
        return inputs


def checked_advantages(estimator: adv.Estimator, inputs: adv.AdvantageInputs) -> np.ndarray:
    """Float32 ``[A]``. Raises: ValueError: another shape, or numbers that are not finite."""
    advantages, name, count = np.asarray(estimator(inputs), np.float32), estimator.type, len(inputs.rewards)
    if advantages.shape != inputs.rewards.shape:
        raise ValueError(
            f"advantage estimator `{name}` gave an array of shape {advantages.shape} for {count} action tokens"
        )
    if not np.isfinite(advantages).all():
        raise ValueError(f"advantage estimator `{name}` gave numbers that are not finite")
    return advantages
