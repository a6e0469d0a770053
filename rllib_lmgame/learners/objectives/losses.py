"""Token-level losses.

Pure functions over action tokens, ``[A]`` in, ``[A]`` out: the caller decides how tokens are averaged (over the tokens
of all micro-batches and all learners). Statistics are detached 0-dimensional tensors that hold *sums over tokens*, so
that they can be added up over micro-batches and learners and divided by the number of tokens at the end.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rllib_lmgame.learners.advantages import AdvantageInputs

MAX_LOG_RATIO = 20.0
"""Bound on a log ratio before ``exp``; a ratio beyond e^20 carries no information and would overflow in
half precision sums.
"""
MAX_LOG_RATIO_KL = 10.0
"""The same for the ratio in ``k3`` as a loss."""
MAX_K3 = 10.0
"""Bound on a token's ``k3`` as an estimate, as in verl: without it the one token of hundreds that an update made far
less likely would be the whole mean.
"""

Stats = dict[str, Tensor]


def clipped_loss(
    ratio: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Stats]:
    """PPO's clipped objective, to be minimised (Schulman et al. 2017, eq. 7, with separate lower and upper clip).

    Args:
        ratio: Of the policy in training to the one before the update; carries the gradient.
        advantages: Of each token.
        clip_low: The ratio is clipped at ``1 - clip_low``.
        clip_high: And at ``1 + clip_high``.
        dual_clip: Bound on the loss of a token with negative advantage, as a multiple of ``-advantage`` (Ye et al.
            2020); above 1. ``None`` is off.

    Returns:
        Loss per token and the sums ``clip_fraction`` (the clip took away the gradient), ``dual_clip_fraction`` and
        ``ratio``.
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
        stats = {
            "clip_fraction": cut.float().sum(),
            "dual_clip_fraction": bounded.float().sum(),
            "ratio": ratio.sum(),
        }
    return loss, stats


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None = None
) -> tuple[Tensor, Stats]:
    """Squared error of the value function (without a factor 1/2, as RLlib's PPO has it).

    Args:
        values: Predictions; carry the gradient.
        old_values: Predictions before the update.
        returns: Targets.
        value_clip: Values may not gain from moving further than this from ``old_values``; ``None`` is off.

    Returns:
        Loss per token and the sum ``value_clip_fraction``.
    """
    error = (values - returns) ** 2
    if value_clip is None:
        return error, {"value_clip_fraction": torch.zeros((), device=values.device)}
    moved = torch.clamp(values - old_values, -value_clip, value_clip)
    clipped_error = (old_values + moved - returns) ** 2
    cut = (clipped_error > error) & ((values - old_values).abs() > value_clip)
    return torch.maximum(error, clipped_error), {"value_clip_fraction": cut.detach().float().sum()}


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """Estimate of KL(policy || reference) per token.

    With ``d = log p - log p_ref`` the estimates are ``k1 = d``, ``k2 = d^2 / 2`` and ``k3 = exp(-d) - 1 + d``
    (http://joschu.net/blog/kl-approx.html), at most :data:`MAX_K3`.

    Args:
        logprobs: Of the policy.
        ref_logprobs: Of the reference.
        estimator: ``k1``, ``k2`` or ``k3``.
    """
    difference = logprobs - ref_logprobs
    if estimator == "k3":
        return torch.clamp(torch.expm1(-torch.clamp(difference, min=-MAX_LOG_RATIO)) + difference, 0.0, MAX_K3)
    return {"k1": difference, "k2": difference**2 / 2}[estimator]


def kl_penalty(
    logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k3", gradient: str = "k2"
) -> tuple[Tensor, Stats]:
    """The penalty that is minimised, and the estimate that is reported.

    As losses, over tokens drawn from the policy, the estimates have other gradients than as estimates. That of ``k2``,
    ``d grad log p``, is the gradient of KL(policy || reference). That of ``k3``, ``(1 - exp(-d)) grad log p``, is the
    one of KL(reference || policy), and that of ``k1`` is zero. As a loss none ends at a bound, where a token would not
    be
    pulled back any more: ``k3`` goes on in a straight line from ``d = -MAX_LOG_RATIO_KL`` on.

    Args:
        logprobs: Of the policy in training; carries the gradient.
        ref_logprobs: Of the reference.
        estimator: Of the value that is reported: ``k1``, ``k2`` or ``k3``.
        gradient: What is minimised: ``k2`` or ``k3``.

    Returns:
        The penalty per token and the sum ``kl`` of the estimate.
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
    gradient of the divergence; ``k2`` and ``k3`` have less variance.

    Args:
        inputs: With ``ref_logprobs``.
        coefficient: In the unit of scaled rewards.
        estimator: ``k1``, ``k2`` or ``k3``, as in :func:`~rllib_lmgame.learners.objectives.losses.kl_estimate`.
    """
    if inputs.ref_logprobs is None:
        raise ValueError("a KL penalty needs the log-probabilities of a reference model")
    old, reference = (torch.from_numpy(a.astype(np.float64)) for a in (inputs.old_logprobs, inputs.ref_logprobs))
    penalty = coefficient * kl_estimate(old, reference, estimator).numpy()
    rewards = inputs.rewards - penalty
    rewards.flags.writeable = False
    return replace(inputs, rewards=rewards)


def next_coefficient(coefficient: float, entropy: float, target: float, rate: float) -> float:
    """The coefficient after an update in which the policy had this entropy; never below 0.

    ``max(0, c + rate (target - entropy))``: gradient ascent on the multiplier of the constraint that the entropy is at
    least the target (Haarnoja et al. 2018, 1812.05905, eq. 17 and 18). It rises while the policy is surer than it
    should be, and falls to 0 where it is not.

    Args:
        coefficient: The one that was in use.
        entropy: Mean over tokens, in nats; one that is not finite changes nothing.
        target: As ``entropy``.
        rate: Step.
    """
    return max(0.0, coefficient + rate * (target - entropy)) if math.isfinite(entropy) else coefficient
