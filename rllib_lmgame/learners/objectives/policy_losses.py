"""Losses of tokens of the value function and of the divergence from a reference, as :mod:`.policy` has the policy's."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rllib_lmgame.learners.advantages import AdvantageInputs
from rllib_lmgame.learners.losses.policy import kl_estimate

MAX_LOG_RATIO_KL = 10.0
"""Bound on a log ratio in ``k3`` as a loss."""

Stats = dict[str, Tensor]


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
