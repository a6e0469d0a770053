"""Importance weights between sampler and learner: what corrects for the sampler's numerics and for its age.

Both log-probabilities are known before the first step, so the weights are made once for the whole batch; a turn or a
trajectory counts as a whole, however its rows are packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.objectives.losses import MAX_LOG_RATIO
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

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
