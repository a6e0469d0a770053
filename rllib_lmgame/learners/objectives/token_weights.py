"""Which action tokens of an update are learned from, and how much each of them counts.

Aggregation makes one number of the losses of tokens. Its weights are made of the whole batch and divided by what a
minibatch has on all learners, so the loss does not depend on how rows are packed or dealt to learners.
Importance weights correct for the sampler's numerics and for its age. Both log-probabilities are known before the first
step, so these weights are made once for the batch; a turn or a trajectory counts as a whole, however it is packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rllib_lmgame.learners.data.batching import MinibatchSize, PackedBatch, TokenBatch
from rllib_lmgame.learners.objectives.base import ModuleUpdate
from rllib_lmgame.learners.objectives.losses import MAX_LOG_RATIO
from rllib_lmgame.learners.objectives.policy_losses import TURN, resolve_policy_loss
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.settings.sections.token_ppo import (
    CONSTANT_LENGTH,
    SEQUENCE_MEAN,
    TOKEN_MEAN,
    TURN_MEAN,
    TokenPPOOptions,
)


def token_weights(batch: TokenBatch, how: str, length: int | None = None) -> np.ndarray:
    """Weight of each action token within what it is averaged with, float32 ``[A]``.

    Args:
        batch: All rows of the update on this learner.
        how: ``token_mean``: 1. ``sequence_mean``: 1 over the tokens of its trajectory (GRPO, 2402.03300, eq. 3).
            ``turn_mean``: 1 over those of its turn. ``constant_length``: 1 over ``length`` (Dr. GRPO, 2503.20783).
        length: Of ``constant_length``.
    """
    if how == TOKEN_MEAN:
        return np.ones(batch.num_actions, np.float32)
    if how == CONSTANT_LENGTH:
        if length is None:
            raise ValueError("constant_length needs a length")
        return np.full(batch.num_actions, 1.0 / length, np.float32)
    unit = {SEQUENCE_MEAN: batch.trajectory, TURN_MEAN: batch.turn}[how]
    sizes = np.bincount(unit, weights=batch.kept)
    return (1.0 / np.maximum(sizes, 1.0)[unit]).astype(np.float32)


def per_token(how: str, minibatch: MinibatchSize | None) -> float:
    """Factor on the weights in a sum that is divided by the number of tokens of the minibatch.

    The mean over trajectories (or turns) of sums of weighted tokens is that factor times such a sum.

    Args:
        how: As in :func:`token_weights`.
        minibatch: What the minibatch has on all learners.
    """
    if how == TOKEN_MEAN:
        return 1.0
    if minibatch is None:
        raise ValueError(f"{how} needs to know what the minibatch has on all learners")
    return minibatch.tokens / max(1.0, minibatch.turns if how == TURN_MEAN else minibatch.trajectories)


NAMES = ("importance_weight", "importance_capped_fraction", "importance_masked_fraction", "logprob_gap_mean")


@dataclass(frozen=True, eq=False)
class ImportanceWeights:
    """The weights of ``A`` action tokens.

    Attributes:
        weights: float64 ``[A]``; truncated ratios, 1 without a cap, 0 where masked.
        capped: bool ``[A]``; the ratio was truncated.
        masked: bool ``[A]``; the weight is 0.
    """

    weights: np.ndarray
    capped: np.ndarray
    masked: np.ndarray


def importance_weights(batch: TokenBatch, ppo: TokenPPOOptions, *, to_sampler: bool = False) -> ImportanceWeights:
    """``min(p_old / p_rollout, cap)``, and 0 where that ratio lies outside a band.

    Truncated importance sampling (Ionides 2008) of tokens or sequences; the masks are those of IcePop (2510.18855),
    where tokens outside ``[low, high]`` leave the loss and keep their place in its denominator.

    Args:
        batch: With ``old_logprobs``; an unknown ratio (NaN) stays unknown.
        ppo: ``importance_cap``, ``importance_level``, ``importance_band`` and ``importance_band_level``.
        to_sampler: The policy loss has the ratio itself; only the mask is left of the weights.
    """
    gap = batch.old_logprobs.astype(np.float64) - batch.rollout_logprobs
    ratio, cap = ratio_of(gap, batch, ppo.importance_level), ppo.importance_cap
    if cap is None or to_sampler:
        weights, capped = np.ones_like(ratio), np.zeros(len(ratio), bool)
    else:
        weights, capped = np.minimum(ratio, cap), ratio > cap
    masked = np.zeros(len(ratio), bool)
    if ppo.importance_band is not None:
        low, high = ppo.importance_band
        compared = ratio_of(gap, batch, ppo.importance_band_level)
        masked = (compared < low) | (compared > high)
    return ImportanceWeights(np.where(masked, 0.0, weights), capped, masked)


def ratio_of(gap: np.ndarray, batch: TokenBatch, level: str) -> np.ndarray:
    """``exp`` of the log ratios, of each token or of what it belongs to, float64 ``[A]``.

    Args:
        gap: float64 ``[A]``; log ratio of each token.
        batch: What the tokens belong to.
        level: ``token``; ``turn`` or ``trajectory``: the product over its tokens; ``turn_geometric`` or
            ``trajectory_geometric``: their geometric mean.
    """
    unit_name, _, mean = level.partition("_")
    if unit_name != "token":
        unit = {"turn": batch.turn, "trajectory": batch.trajectory}[unit_name]
        sums = np.bincount(unit, weights=gap)
        if mean:
            sums /= np.maximum(1, np.bincount(unit))
        gap = sums[unit]
    return np.exp(np.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def importance_metrics(found: ImportanceWeights | None, batch: TokenBatch | None, ranks: Ranks) -> dict[str, float]:
    """Means over the tokens that are learned from, of all learners: the weight, what was truncated and masked, and the
    absolute difference of log-probabilities. All learners take part.
    """
    sums = np.zeros(1 + len(NAMES))
    if found is not None and batch is not None:
        gap = np.abs(batch.old_logprobs.astype(np.float64) - batch.rollout_logprobs)
        columns = (np.ones(len(gap)), found.weights, found.capped, found.masked, gap)
        sums[:] = [np.sum(column[batch.kept]) for column in columns]
    count, *totals = ranks.sum(sums).tolist()
    return {name: total / max(count, 1.0) for name, total in zip(NAMES, totals, strict=True)}


def weigh_tokens(update: ModuleUpdate) -> None:
    """Fill ``sequence``, ``loss_weights`` and ``importance_weights`` of a batch with ``old_logprobs``, and the metrics
    of the last. All learners take part.
    """
    ppo, batch, found = update.settings.ppo, update.batch, None
    if batch is not None:
        chosen = resolve_policy_loss(ppo.policy_loss)
        batch.sequence = batch.stretches(chosen.sequence or TURN)
        batch.loss_weights = token_weights(batch, ppo.loss_aggregation, ppo.loss_length)
        found = importance_weights(batch, ppo, to_sampler=chosen.to_sampler)
        batch.importance_weights = found.weights.astype(np.float32)
    update.meter.before |= importance_metrics(found, batch, update.ranks)


def learned_from(
    update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]
) -> tuple[PackedBatch, Mapping[str, torch.Tensor]]:
    """The action tokens of a micro-batch that are learned from, with what the forward pass says of them."""
    if update.batch is None:
        return pack, out
    keep = update.batch.kept[pack.token_slot]
    if keep.all():
        return pack, out
    chosen = torch.from_numpy(keep).to(out["logprobs"].device)
    return pack.only(keep), {name: tensor[chosen] for name, tensor in out.items() if name != "bootstrap_values"}
