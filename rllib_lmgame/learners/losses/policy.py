"""Losses of tokens, of the policy, the value function and the KL penalty, and how they are averaged.

A policy loss is a class whose fields are its options. All are functions over action tokens, ``[A]`` in, ``[A]`` out.
Statistics are detached 0-dimensional tensors that hold *sums over tokens*, so that they can be added up over
micro-batches and learners. The objective multiplies a policy loss by importance weights and averages it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllib_lmgame.base.group import REQUIRED, Group, Scheduled, option, tag
from rllib_lmgame.base.plugin import LazyModule, import_path

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from rllib_lmgame.learners.data.batching import MinibatchSize, TokenBatch

    Stats = dict[str, Tensor]
else:
    np = LazyModule("numpy")

MAX_LOG_RATIO = 20.0
"""Bound on a log ratio before ``exp``: beyond it a ratio says nothing, and would overflow in half precision."""
MAX_K3 = 10.0
"""Bound on a token's ``k3`` as an estimate, as in verl: one token of hundreds could else be the whole mean."""

MAX_LOG_RATIO_KL = 10.0
"""Bound on a log ratio in ``k3`` as a loss."""

TURN, TRAJECTORY = "turn", "trajectory"
"""What a sequence is: one reply of the model, or all replies of one player in an episode."""


@dataclass(frozen=True, kw_only=True)
class PolicyTerms:
    """What a policy loss is given of ``A`` action tokens of one micro-batch.

    Attributes:
        logprobs: float ``[A]``; of the policy in training, with gradient.
        old_logprobs, rollout_logprobs: float ``[A]``; of the policy before the update, and of the sampler.
        advantages: float ``[A]``.
        sequence: int64 ``[A]``; equal for the tokens of one sequence, which lies whole in a micro-batch; what fills
            several rows is a sequence in each of them.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    sequence: Tensor


class PolicyLoss(Group):
    """A policy loss of its own derives from this: its fields are the options beside ``type``."""

    type: str = tag("", "Its name, or `package.module:Class`.")

    to_sampler: ClassVar[bool] = False
    """Its ratio is that to the sampler: its importance weights are 1, or 0 where a token is masked."""

    sequence: ClassVar[str] = TURN
    """What its sequences are: :data:`TURN` or :data:`TRAJECTORY`."""

    def __call__(self, terms: PolicyTerms, /) -> tuple[Tensor, Stats]:
        """The loss of each token ``[A]`` and sums for the metrics."""
        raise NotImplementedError


class FunctionLoss(PolicyLoss):
    """A function of :class:`PolicyTerms` at an import path."""

    def __call__(self, terms: PolicyTerms, /) -> tuple[Tensor, Stats]:
        return import_path(self.type, "training.policy_loss")(terms)


class Clip(PolicyLoss):
    """PPO: ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` (Schulman et al. 2017, eq. 7)."""

    type: str = tag("clip", "Its name.")
    clip_low: Scheduled[float] = option(0.2, "The ratio is clipped at 1 less this.", gt=0, le=1)
    clip_high: Scheduled[float] = option(0.28, "The ratio is clipped at 1 and this.", gt=0)
    dual_clip: Scheduled[float | None] = option(
        None, "Bound on the loss of bad tokens with a large ratio; null is off.", gt=1
    )

    def __call__(self, terms: PolicyTerms, /) -> tuple[Tensor, Stats]:
        import torch

        return self._clipped(terms, torch.exp(_bounded(terms.logprobs - terms.old_logprobs)))

    def _clipped(self, terms: PolicyTerms, ratio: Tensor) -> tuple[Tensor, Stats]:
        loss, stats = clipped_loss(ratio, terms.advantages, self.clip_low, self.clip_high, self.dual_clip)
        return loss, stats | {"approx_kl": _approx_kl(terms)}


class CISPO(PolicyLoss):
    """``-sg[min(r, 1 + clip_high)] A log p``: no token loses its gradient (MiniMax-M1, 2506.13585, eq. 4 one-sided)."""

    type: str = tag("cispo", "Its name.")
    clip_high: Scheduled[float] = option(
        4.0, "The weight is at most 1 and this; 5 in all, as ScaleRL (2510.13786) has it.", gt=0
    )

    def __call__(self, terms: PolicyTerms, /) -> tuple[Tensor, Stats]:
        import torch

        with torch.no_grad():
            ratio = torch.exp(_bounded(terms.logprobs - terms.old_logprobs))
            weight = torch.clamp(ratio, None, 1.0 + self.clip_high)
        return -weight * terms.advantages * terms.logprobs, _stats(ratio, terms, weight != ratio)


class GSPO(Clip):
    """PPO's clip of the ratio of a sequence, ``s = exp(mean_t log r_t)`` (GSPO, 2507.18071, eq. 7).

    In the form ``sg[s] p_t / sg[p_t]`` (eq. 13 and 14), which lets tokens have advantages of their own.
    """

    type: str = tag("gspo", "Its name.")
    clip_low: Scheduled[float] = option(3e-4, "The ratio is clipped at 1 less this.", gt=0, le=1)
    clip_high: Scheduled[float] = option(4e-4, "The ratio is clipped at 1 and this.", gt=0)

    def __call__(self, terms: PolicyTerms, /) -> tuple[Tensor, Stats]:
        import torch

        log_ratio = _bounded(terms.logprobs - terms.old_logprobs)
        mean = _mean_of_sequence(log_ratio.detach(), terms.sequence)
        return self._clipped(terms, torch.exp(mean + terms.logprobs - terms.logprobs.detach()))


class GSPOTrajectory(GSPO):
    """``gspo`` of whole trajectories."""

    type: str = tag("gspo_trajectory", "Its name.")
    sequence: ClassVar[str] = TRAJECTORY


class DPPO(PolicyLoss):
    """``-r A`` with ``r = p / p_rollout`` (DPPO with binary total variation, 2602.04879).

    There is no gradient where a step would lead further out of ``-clip_low <= p - p_rollout <= clip_high``. So a rare
    token may change by a large factor, a frequent one only by a small difference.
    """

    type: str = tag("dppo", "Its name.")
    clip_low: Scheduled[float] = option(0.2, "How far a probability may fall.", gt=0, le=1)
    clip_high: Scheduled[float] = option(0.2, "How far a probability may rise.", gt=0)
    to_sampler: ClassVar[bool] = True

    def __call__(self, terms: PolicyTerms, /) -> tuple[Tensor, Stats]:
        import torch

        log_ratio = _bounded(terms.logprobs - terms.rollout_logprobs)
        with torch.no_grad():
            moved = torch.exp(terms.logprobs) - torch.exp(terms.rollout_logprobs)
            rises, falls = terms.advantages > 0, terms.advantages < 0
            cut = (rises & (moved > self.clip_high)) | (falls & (moved < -self.clip_low))
        ratio = torch.exp(log_ratio)
        return torch.where(cut, 0.0, -terms.advantages * ratio), _stats(ratio, terms, cut)


def token_losses(loss: PolicyLoss, terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """The loss of each token ``[A]`` and sums for the metrics. Raises: ValueError: ``loss`` gives something else."""
    from torch import Tensor

    given: Any = loss(terms)
    if isinstance(given, tuple) and len(given) == 2:
        tokens, sums = given
        if isinstance(tokens, Tensor) and tokens.shape == terms.logprobs.shape and isinstance(sums, dict):
            return tokens, sums
    pair = f"losses of shape {list(terms.logprobs.shape)}, and a dictionary of sums"
    raise ValueError(f"training.policy_loss `{loss.type}` must return a pair: {pair}")


def clipped_loss(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Stats]:
    """PPO's clipped objective, to be minimised (Schulman et al. 2017, eq. 7, with separate lower and upper clip).

    Args:
        ratio: Of the policy in training to the one before the update; carries the gradient.
        dual_clip: Bound on the loss of a token with negative advantage, as a multiple of ``-advantage`` (Ye et al.
            2020); above 1. ``None`` is off.

    Returns:
        Loss per token and sums: ``clip_fraction`` (the clip took the gradient), ``dual_clip_fraction`` and ``ratio``.
    """
    import torch

    clipped = torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    bounded = torch.zeros_like(loss, dtype=torch.bool)
    if dual_clip is not None:
        bound = -dual_clip * advantages
        bounded = (advantages < 0) & (loss > bound)
        loss = torch.where(bounded, bound, loss)
    with torch.no_grad():
        cut = ((advantages > 0) & (ratio > 1.0 + clip_high)) | ((advantages < 0) & (ratio < 1.0 - clip_low))
        stats = {"clip_fraction": cut.float().sum(), "dual_clip_fraction": bounded.float().sum(), "ratio": ratio.sum()}
    return loss, stats


def k3_estimate(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) per token, ``exp(-d) - 1 + d`` with ``d = log p - log p_ref``.

    See http://joschu.net/blog/kl-approx.html; at most :data:`MAX_K3`.
    """
    import torch

    difference = logprobs - ref_logprobs
    return torch.clamp(torch.expm1(-torch.clamp(difference, min=-MAX_LOG_RATIO)) + difference, 0.0, MAX_K3)


def _stats(ratio: Tensor, terms: PolicyTerms, cut: Tensor) -> Stats:
    return {
        "clip_fraction": cut.detach().float().sum(),
        "dual_clip_fraction": ratio.new_zeros(()),
        "ratio": ratio.detach().sum(),
        "approx_kl": _approx_kl(terms),
    }


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _approx_kl(terms: PolicyTerms) -> Tensor:
    """Sum of estimates of KL(policy before the update || policy), from which the tokens come."""
    return k3_estimate(terms.old_logprobs, terms.logprobs.detach()).sum()


def _mean_of_sequence(values: Tensor, sequence: Tensor) -> Tensor:
    import torch

    _, number, size = torch.unique(sequence, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(size), dtype=values.dtype, device=values.device).index_add_(0, number, values)
    return (sums / size)[number]


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None = None
) -> tuple[Tensor, Stats]:
    """Squared error of the value function (without a factor 1/2, as RLlib's PPO has it); ``values`` carry the gradient.

    Values may not gain from moving further than ``value_clip`` (``None`` is off) from ``old_values``, those before the
    update. Gives the loss per token and the sum ``value_clip_fraction``.
    """
    import torch

    error = (values - returns) ** 2
    if value_clip is None:
        return error, {"value_clip_fraction": torch.zeros((), device=values.device)}
    moved = torch.clamp(values - old_values, -value_clip, value_clip)
    clipped_error = (old_values + moved - returns) ** 2
    cut = (clipped_error > error) & ((values - old_values).abs() > value_clip)
    return torch.maximum(error, clipped_error), {"value_clip_fraction": cut.detach().float().sum()}


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, gradient: str = "k2") -> Tensor:
    """The penalty per token that is minimised; ``logprobs`` carry the gradient.

    Over tokens drawn from the policy, the gradient of ``k2``, ``d grad log p``, is that of KL(policy || reference), and
    the one of ``k3``, ``(1 - exp(-d)) grad log p``, that of KL(reference || policy). As a loss ``k3`` goes on in a
    straight line from ``d = -MAX_LOG_RATIO_KL`` on, so that every token is pulled back.
    """
    import torch

    with torch.no_grad():
        difference = logprobs - ref_logprobs
        near = torch.clamp(difference, min=-MAX_LOG_RATIO_KL)
        slope = {"k2": difference, "k3": -torch.expm1(-near)}[gradient]
        value = difference**2 / 2 if gradient == "k2" else near - slope + slope * (difference - near)
    return value + slope * (logprobs - logprobs.detach())


class Aggregation(Group):
    """The mean over trajectories of sums of weighted tokens."""

    type: str = tag("", "Its name, or `package.module:Class`.")

    def weights(self, batch: TokenBatch) -> np.ndarray:
        """Weight of each action token within its trajectory, float32 ``[A]``."""
        raise NotImplementedError

    def per_token(self, minibatch: MinibatchSize) -> float:
        """Factor on the weights in a sum that is divided by the number of tokens of the minibatch on all learners."""
        return minibatch.tokens / max(1.0, minibatch.trajectories)


class TokenMean(Aggregation):
    """All tokens count alike."""

    type: str = tag("token_mean", "Its name.")

    def weights(self, batch: TokenBatch) -> np.ndarray:
        return np.ones(batch.num_actions, np.float32)

    def per_token(self, minibatch: MinibatchSize) -> float:
        return 1.0


class SequenceMean(Aggregation):
    """1 over the tokens of the trajectory (GRPO, 2402.03300, eq. 3)."""

    type: str = tag("sequence_mean", "Its name.")

    def weights(self, batch: TokenBatch) -> np.ndarray:
        return (1.0 / np.bincount(batch.trajectory)[batch.trajectory]).astype(np.float32)


class ConstantLength(Aggregation):
    """1 over a constant, divided by the number of trajectories (Dr. GRPO, 2503.20783)."""

    type: str = tag("constant_length", "Its name.")
    length: Scheduled[int] = option(
        REQUIRED, "Tokens of the longest trajectory, or another constant in their place.", ge=1
    )

    def weights(self, batch: TokenBatch) -> np.ndarray:
        return np.full(batch.num_actions, 1.0 / self.length, np.float32)
