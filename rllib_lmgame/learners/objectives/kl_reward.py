"""The KL penalty as a part of the rewards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rllib_lmgame.learners.advantages import AdvantageInputs
from rllib_lmgame.learners.objectives.losses import kl_estimate


def penalised(inputs: AdvantageInputs, coefficient: float, estimator: str) -> AdvantageInputs:
    """The inputs with ``coefficient`` times an estimate of KL(policy || reference) taken off the reward of every token.

    The policy is the one before the update, and no gradient goes through the penalty: what the policy is pulled by is
    the return of penalties to come (Ziegler et al. 2019, eq. 2, with ``k1``; of the estimates only ``k1`` has there the
    gradient of the divergence, and ``k2`` and ``k3`` have less variance).

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
