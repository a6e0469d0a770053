"""How the losses of tokens become one number: a weight for each action token.

The weights are made of the whole batch, and divided by what a minibatch has on all learners, so that the loss of a
minibatch and its gradient are the same however its rows are packed into micro-batches or spread over learners.
"""

from __future__ import annotations

import numpy as np

from rllib_lmgame.learners.data.batching import MinibatchSize, TokenBatch
from rllib_lmgame.settings.sections.token_ppo import CONSTANT_LENGTH, SEQUENCE_MEAN, TOKEN_MEAN, TURN_MEAN


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
