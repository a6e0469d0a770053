"""Policy losses: what is made of the ratio of the policy in training to the one that played.

Each is a pure function from :class:`PolicyTerms`, tensors over action tokens, to the loss of each token and sums for
the metrics; ``token_ppo.policy_loss`` names one. The objective multiplies it by importance weights
(:mod:`~rllib_lmgame.learners.objectives.token_weights`) and averages it over tokens
(:mod:`~rllib_lmgame.learners.objectives.token_weights`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rllib_lmgame.learners.objectives.losses import MAX_LOG_RATIO, Stats, clipped_loss, kl_estimate
from rllib_lmgame.settings.plugins import POLICY_LOSSES, check_call

TURN, TRAJECTORY = SEQUENCES = ("turn", "trajectory")
"""What a sequence is: one reply of the model, or all replies of one player in an episode."""


@dataclass(frozen=True, kw_only=True)
class PolicyTerms:
    """What a policy loss is given of ``A`` action tokens of one micro-batch.

    Attributes:
        logprobs: float ``[A]``; of the policy in training, with gradient.
        old_logprobs: float ``[A]``; of the policy before the update.
        rollout_logprobs: float ``[A]``; of the sampler.
        advantages: float ``[A]``.
        sequence: int64 ``[A]``; equal for the tokens of one sequence, for a loss that asks for sequences. Sequences
            lie whole in a micro-batch; what fills several rows is a sequence in each of them.
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
    """``-sg[min(r, 1 + high)] A log p``: the weight is bounded, no token loses its gradient (MiniMax-M1, 2506.13585,
    eq. 4, with the lower bound left out as there).
    """
    return _weighted_likelihood(terms, -math.inf)


def cispo_two_sided(terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """``-sg[clip(r, 1 - low, 1 + high)] A log p`` (2506.13585, eq. 4 and 5 with both bounds)."""
    return _weighted_likelihood(terms, 1.0 - terms.clip_low)


def gspo(terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """PPO's clip of the ratio of a sequence, ``s = exp(mean_t log r_t)``, in the form that lets tokens have advantages
    of their own: ``sg[s] p_t / sg[p_t]`` (GSPO, 2507.18071, eq. 7, 13 and 14). Where they are equal in a sequence, the
    gradient is the one of ``|sequence| min(s A, clip(s) A)``.
    """
    log_ratio = _bounded(terms.logprobs - terms.old_logprobs)
    mean = _mean_of_sequence(log_ratio.detach(), terms.sequence)
    return _clipped(terms, torch.exp(mean + terms.logprobs - terms.logprobs.detach()))


def dppo(terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """``-r A`` with the ratio to the sampler, ``r = p / p_rollout``, and no gradient where a step would lead further
    out of ``-low <= p - p_rollout <= high`` (DPPO with binary total variation, 2602.04879). So a rare token may change
    by a large factor, a frequent one only by a small difference.
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
        function: The loss.
        clip_low, clip_high: What ``token_ppo.clip_low`` and ``clip_high`` are if they are not said; ``None`` where it
            has no use for one.
        dual_clip: Whether it has a use for ``token_ppo.dual_clip``.
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


CLIP = PolicyLoss(clip, dual_clip=True)
CISPO = PolicyLoss(cispo, clip_low=None, clip_high=4.0)
"""With a weight of at most 5, as ScaleRL (2510.13786) has it."""
CISPO_TWO_SIDED = PolicyLoss(cispo_two_sided)
GSPO = PolicyLoss(gspo, clip_low=3e-4, clip_high=4e-4, dual_clip=True, sequence=TURN)
GSPO_TRAJECTORY = PolicyLoss(gspo, clip_low=3e-4, clip_high=4e-4, dual_clip=True, sequence=TRAJECTORY)
DPPO = PolicyLoss(dppo, clip_low=0.2, clip_high=0.2, to_sampler=True)


def token_losses(name: str, loss: PolicyLoss, terms: PolicyTerms) -> tuple[Tensor, Stats]:
    """The loss of each token ``[A]`` and sums for the metrics.

    Raises:
        ValueError: ``loss``, which the configuration calls ``name``, gives something else.
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

    Raises:
        ConfigError: No such loss (the message names the nearest one), or one that does not take :class:`PolicyTerms`.
    """
    found: Any = POLICY_LOSSES.find(name)
    if isinstance(found, PolicyLoss):
        return found
    takes = "a policy loss takes one argument, PolicyTerms (rllib_lmgame.learners.objectives.policy_losses)"
    check_call(found, name, POLICY_LOSSES.key, takes, None)
    return PolicyLoss(found, dual_clip=True)
