"""Weights of learners as arrays, and the optimizer that moves them; importable in Ray's workers too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rllib_lmgame.inference.weights import unpack_state
from rllib_lmgame.learners.options import WeightUse


def hf_state(
    learner: Any, module_id: str = "player", use: WeightUse = WeightUse.TRAINING
) -> dict[str, np.ndarray] | None:
    """Copies by Hugging Face name on rank 0, ``None`` elsewhere. All learners must be asked."""
    bundle = learner.pack_weights(module_id, 0, use)
    if bundle is None:
        return None
    return {
        name: (t.float() if t.dtype == torch.bfloat16 else t).numpy().copy() for name, t in unpack_state(bundle).items()
    }


def weights_of(algorithm: Any, policy: str = "player", use: WeightUse = WeightUse.TRAINING) -> dict[str, np.ndarray]:
    """A policy's weights in an algorithm's learners, local or remote: see :func:`hf_state`."""
    from rllib_lmgame.algorithms.cluster.workers import foreach_learner

    states = foreach_learner(algorithm.learner_group, lambda learner: hf_state(learner, policy, use))
    return next(state for state in states if state is not None)


def set_adam_eps(learner: Any, eps: float) -> None:
    """Adam's steps become ``lr * m / (sqrt(v) + eps)``. With its own ``eps`` of 1e-8 a gradient near 0 makes a step of
    full length, and rounding, which differs with the processor, decides where to.
    """
    for group in learner.get_optimizer("player").param_groups:
        group["eps"] = eps
