"""Losses of tokens: of the value function, of the divergence from a reference, and of the policy.

Pure functions over action tokens, ``[A]`` in, ``[A]`` out. Statistics are detached 0-dimensional tensors that hold
*sums over tokens*, so that they can be added up over micro-batches and learners. ``token_ppo.policy_loss`` names a
policy loss; the objective multiplies it by importance weights and averages it over tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllib_lmgame.learners.advantages import AdvantageInputs
from rllib_lmgame.settings.plugins import LOSSES, POLICY_LOSSES, check_call

MAX_LOG_RATIO = 20.0
"""Bound on a log ratio before ``exp``: beyond it a ratio carries no information and would overflow in half precision.
"""
MAX_LOG_RATIO_KL = 10.0
"""The same for the ratio in ``k3`` as a loss."""
MAX_K3 = 10.0
"""Bound on a token's ``k3`` as an estimate, as in verl: one token of hundreds could else be the whole mean."""

Stats = dict[str, Tensor]


def clipped_loss(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Stats]:
    """PPO's clipped objective, to be minimised (Schulman et al. 2017, eq. 7, with separate lower and upper clip).

    Args:
        ratio: Of the policy in training to the one before the update; carries the gradient.
        clip_low, clip_high: The ratio is clipped at ``1 - clip_low`` and ``1 + clip_high``.
        dual_clip: Bound on the loss of a token with negative advantage, as a multiple of ``-advantage`` (Ye et al.
            2020); above 1. ``None`` is off.

    Returns:
        Loss per token and sums: ``clip_fraction`` (the clip took the gradient), ``dual_clip_fraction`` and ``ratio``.
    """
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


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None = None
) -> tuple[Tensor, Stats]:
    """Squared error of the value function (without a factor 1/2, as RLlib's PPO has it); ``values`` carry the gradient.

    Values may not gain from moving further than ``value_clip`` (``None`` is off) from ``old_values``, those before the
    update. Gives the loss per token and the sum ``value_clip_fraction``.
    """
    error = (values - returns) ** 2
    if value_clip is None:
        return error, {"value_clip_fraction": torch.zeros((), device=values.device)}
    moved = torch.clamp(values - old_values, -value_clip, value_clip)
    clipped_error = (old_values + moved - returns) ** 2
    cut = (clipped_error > error) & ((values - old_values).abs() > value_clip)
    return torch.maximum(error, clipped_error), {"value_clip_fraction": cut.detach().float().sum()}


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """Estimate of KL(policy || reference) per token; ``estimator`` is ``k1``, ``k2`` or ``k3``.

    With ``d = log p - log p_ref`` the estimates are ``k1 = d``, ``k2 = d^2 / 2`` and ``k3 = exp(-d) - 1 + d``
    (http://joschu.net/blog/kl-approx.html), at most :data:`MAX_K3`.
    """
    difference = logprobs - ref_logprobs
    if estimator == "k3":
        return torch.clamp(torch.expm1(-torch.clamp(difference, min=-MAX_LOG_RATIO)) + difference, 0.0, MAX_K3)
    return {"k1": difference, "k2": difference**2 / 2}[estimator]


def kl_penalty(
    logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k3", gradient: str = "k2"
) -> tuple[Tensor, Stats]:
    """The penalty per token that is minimised, and the sum ``kl`` of the estimate that is reported.

    As losses, over tokens drawn from the policy, the estimates have other gradients than as estimates. That of ``k2``,
    ``d grad log p``, is the gradient of KL(policy || reference). That of ``k3``, ``(1 - exp(-d)) grad log p``, is the
    one of KL(reference || policy), and that of ``k1`` is zero. As a loss none ends at a bound, where a token would not
    be pulled back any more: ``k3`` goes on in a straight line from ``d = -MAX_LOG_RATIO_KL`` on.

    Args:
        logprobs: Of the policy in training; carries the gradient.
        estimator: Of the value that is reported: ``k1``, ``k2`` or ``k3``.
        gradient: What is minimised: ``k2`` or ``k3``.
    """
    with torch.no_grad():
        difference = logprobs - ref_logprobs
        near = torch.clamp(difference, min=-MAX_LOG_RATIO_KL)
        slope = {"k2": difference, "k3": -torch.expm1(-near)}[gradient]
        value = difference**2 / 2 if gradient == "k2" else near - slope + slope * (difference - near)
        estimate = kl_estimate(logprobs, ref_logprobs, estimator)
    return value + slope * (logprobs - logprobs.detach()), {"kl": estimate.sum()}


def penalised(inputs: AdvantageInputs, coefficient: float, estimator: str) -> AdvantageInputs:
    """The inputs with ``coefficient`` times an estimate of KL(policy || reference) taken off the reward of every token.

    The policy is the one before the update, and no gradient goes through the penalty: what pulls the policy is the
    return of penalties to come (Ziegler et al. 2019, eq. 2, with ``k1``). Of the estimates only ``k1`` has there the
    gradient of the divergence; ``k2`` and ``k3`` have less variance. ``coefficient`` is in scaled rewards.
    """
    if inputs.ref_logprobs is None:
        raise ValueError("a KL penalty needs the log-probabilities of a reference model")
    old, reference = (torch.from_numpy(a.astype(np.float64)) for a in (inputs.old_logprobs, inputs.ref_logprobs))
    penalty = coefficient * kl_estimate(old, reference, estimator).numpy()
    rewards = inputs.rewards - penalty
    rewards.flags.writeable = False
    return replace(inputs, rewards=rewards)


def next_coefficient(coefficient: float, entropy: float, target: float, rate: float) -> float:
    """The coefficient after an update in which the policy had this mean entropy, in nats as ``target``; never below 0.

    ``max(0, c + rate (target - entropy))``: gradient ascent on the multiplier of the constraint that the entropy is at
    least the target (Haarnoja et al. 2018, 1812.05905, eq. 17 and 18). An entropy that is not finite changes nothing.
    """
    return max(0.0, coefficient + rate * (target - entropy)) if math.isfinite(entropy) else coefficient


TURN, TRAJECTORY = SEQUENCES = ("turn", "trajectory")
"""What a sequence is: one reply of the model, or all replies of one player in an episode."""


@dataclass(frozen=True, kw_only=True)
class PolicyTerms:
    """What a policy loss is given of ``A`` action tokens of one micro-batch.

    Attributes:
        logprobs: float ``[A]``; of the policy in training, with gradient.
        old_logprobs, rollout_logprobs: float ``[A]``; of the policy before the update, and of the sampler.
        advantages: float ``[A]``.
        sequence: int64 ``[A]``; equal for the tokens of one sequence, for a loss that asks for sequences. Sequences lie
            whole in a micro-batch; what fills several rows is a sequence in each of them.
        clip_low, clip_high: Bounds, infinite where there is none.
        dual_clip: Bound on the loss of bad tokens, or ``None``.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    sequence: Tensor
    clip_low: float
    clip_high: float
    dual_clip: float | None = None


LossFunction = Callable[[PolicyTerms], tuple[Tensor, Stats]]


def clip(terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """PPO: ``-min(r A, clip(r, 1 - low, 1 + high) A)`` (Schulman et al. 2017, eq. 7)."""
    return _clipped(terms, torch.exp(_bounded(terms.logprobs - terms.old_logprobs)))


def cispo(terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """``-sg[min(r, 1 + high)] A log p``: no token loses its gradient (MiniMax-M1, 2506.13585, eq. 4 one-sided)."""
    return _weighted_likelihood(terms, -math.inf)


def cispo_two_sided(terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """``-sg[clip(r, 1 - low, 1 + high)] A log p`` (2506.13585, eq. 4 and 5 with both bounds)."""
    return _weighted_likelihood(terms, 1.0 - terms.clip_low)


def gspo(terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """PPO's clip of the ratio of a sequence, ``s = exp(mean_t log r_t)`` (GSPO, 2507.18071, eq. 7, 13 and 14).

    It has the form that lets tokens have advantages of their own: ``sg[s] p_t / sg[p_t]``. Where they are equal in a
    sequence, the gradient is the one of ``|sequence| min(s A, clip(s) A)``.
    """
    log_ratio = _bounded(terms.logprobs - terms.old_logprobs)
    mean = _mean_of_sequence(log_ratio.detach(), terms.sequence)
    return _clipped(terms, torch.exp(mean + terms.logprobs - terms.logprobs.detach()))


def dppo(terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """``-r A`` with ``r = p / p_rollout`` (DPPO with binary total variation, 2602.04879).

    There is no gradient where a step would lead further out of ``-low <= p - p_rollout <= high``. So a rare token may
    change by a large factor, a frequent one only by a small difference.
    """
    log_ratio = _bounded(terms.logprobs - terms.rollout_logprobs)
    with torch.no_grad():
        moved = torch.exp(terms.logprobs) - torch.exp(terms.rollout_logprobs)
        rises, falls = terms.advantages > 0, terms.advantages < 0
        cut = (rises & (moved > terms.clip_high)) | (falls & (moved < -terms.clip_low))
    ratio = torch.exp(log_ratio)
    return torch.where(cut, 0.0, -terms.advantages * ratio), _stats(ratio, terms, cut)


def _clipped(terms: PolicyTerms, ratio: Tensor) -> tuple[Tensor, Stats]:
    loss, stats = clipped_loss(ratio, terms.advantages, terms.clip_low, terms.clip_high, terms.dual_clip)
    return loss, stats | {"approx_kl": _approx_kl(terms)}


def _weighted_likelihood(terms: PolicyTerms, low: float) -> tuple[Tensor, Stats]:
    with torch.no_grad():
        ratio = torch.exp(_bounded(terms.logprobs - terms.old_logprobs))
        weight = torch.clamp(ratio, low, 1.0 + terms.clip_high)
    return -weight * terms.advantages * terms.logprobs, _stats(ratio, terms, weight != ratio)


def _stats(ratio: Tensor, terms: PolicyTerms, cut: Tensor) -> Stats:
    with torch.no_grad():
        return {
            "clip_fraction": cut.float().sum(),
            "dual_clip_fraction": torch.zeros((), device=ratio.device),
            "ratio": ratio.detach().sum(),
            "approx_kl": _approx_kl(terms),
        }


def _bounded(log_ratio: Tensor) -> Tensor:
    return torch.clamp(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)


@torch.no_grad()
def _approx_kl(terms: PolicyTerms) -> Tensor:
    """Sum of estimates of KL(policy before the update || policy), from which the tokens come."""
    return kl_estimate(terms.old_logprobs, terms.logprobs, "k3").sum()


def _mean_of_sequence(values: Tensor, sequence: Tensor) -> Tensor:
    """At each token the mean over its sequence, ``[A]``."""
    _, number, size = torch.unique(sequence, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(size), dtype=values.dtype, device=values.device).index_add_(0, number, values)
    return (sums / size)[number]


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss as a configuration names it.

    Attributes:
        clip_low, clip_high: Of ``token_ppo.policy_loss.low`` and ``high`` if not said; ``None`` where it has no use for
            one.
        dual_clip: Whether it has a use for ``token_ppo.policy_loss.dual``.
        to_sampler: Its ratio is that to the sampler: its importance weights are 1, or 0 where a token is masked.
        sequence: What its sequences are, one of :data:`SEQUENCES`, or ``None``.
    """

    function: LossFunction
    clip_low: float | None = 0.2
    clip_high: float | None = 0.28
    dual_clip: bool = False
    to_sampler: bool = False
    sequence: str | None = None

    def bounds(self, low: float | None, high: float | None) -> tuple[float, float]:
        """The bounds in use, of those that are configured."""
        used = (low if low is not None else self.clip_low, high if high is not None else self.clip_high)
        return tuple(math.inf if bound is None else bound for bound in used)  # type: ignore[return-value]


CLIP = PolicyLoss(clip, *LOSSES["clip"])
CISPO = PolicyLoss(cispo, *LOSSES["cispo"])
CISPO_TWO_SIDED = PolicyLoss(cispo_two_sided, *LOSSES["cispo_two_sided"])
GSPO = PolicyLoss(gspo, *LOSSES["gspo"], sequence=TURN)
GSPO_TRAJECTORY = PolicyLoss(gspo, *LOSSES["gspo_trajectory"], sequence=TRAJECTORY)
DPPO = PolicyLoss(dppo, *LOSSES["dppo"], to_sampler=True)


def token_losses(name: str, loss: PolicyLoss, terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """The loss of each token ``[A]`` and sums for the metrics.

    Raises: ValueError: ``loss``, which the configuration calls ``name``, gives something else.
    """
    given: Any = loss.function(terms)
    if isinstance(given, tuple) and len(given) == 2:
        tokens, sums = given
        if isinstance(tokens, Tensor) and tokens.shape == terms.logprobs.shape and isinstance(sums, dict):
            return tokens, sums
    raise ValueError(
        f"{POLICY_LOSSES.key} `{name}` must return a pair: the loss of each token, a tensor of shape "
        f"{list(terms.logprobs.shape)}, and a dictionary of sums for the metrics, {{}} for none; it gave "
        f"{_shown(given)}"
    )


def _shown(given: Any) -> str:
    if isinstance(given, tuple):
        return f"({', '.join(map(_shown, given))})"
    return f"a tensor of shape {list(given.shape)}" if isinstance(given, Tensor) else type(given).__name__


def resolve_policy_loss(name: str) -> PolicyLoss:
    """The policy loss registered under ``name``, or the one at ``package.module:name``.

    Raises: ConfigError: No such loss, or one that does not take :class:`PolicyTerms`.
    """
    found: Any = POLICY_LOSSES.find(name)
    if isinstance(found, PolicyLoss):
        return found
    takes = "a policy loss takes one argument, PolicyTerms (rllib_lmgame.learners.objectives.policy_losses)"
    check_call(found, name, POLICY_LOSSES.key, takes, None)
    return PolicyLoss(found, dual_clip=True)
