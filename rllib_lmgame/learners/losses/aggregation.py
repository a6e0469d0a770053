"""How losses of tokens are averaged over a minibatch on all learners: each class weighs tokens and counts its units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_lmgame.base.group import REQUIRED, Group, Scheduled, option, tag
from rllib_lmgame.base.plugin import LazyModule

if TYPE_CHECKING:
    import numpy as np

    from rllib_lmgame.learners.data.batching import MinibatchSize, TokenBatch
else:
    np = LazyModule("numpy")


class Aggregation(Group):
    """The mean over units, as trajectories, of sums of weighted tokens."""

    type: str = tag("", "Its name, or `package.module:Class`.")

    def weights(self, batch: TokenBatch) -> np.ndarray:
        """Weight of each action token within its unit, float32 ``[A]``."""
        raise NotImplementedError

    def units(self, minibatch: MinibatchSize) -> float:
        """How many units a minibatch has on all learners."""
        return minibatch.trajectories

    def per_token(self, minibatch: MinibatchSize) -> float:
        """Factor on the weights in a sum that is divided by the number of tokens of the minibatch on all learners."""
        return minibatch.tokens / max(1.0, self.units(minibatch))


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
        return _shares(batch, batch.trajectory)


class TurnMean(Aggregation):
    """1 over the tokens of the turn."""

    type: str = tag("turn_mean", "Its name.")

    def weights(self, batch: TokenBatch) -> np.ndarray:
        return _shares(batch, batch.turn)

    def units(self, minibatch: MinibatchSize) -> float:
        return minibatch.turns


class ConstantLength(Aggregation):
    """1 over a constant, divided by the number of trajectories (Dr. GRPO, 2503.20783)."""

    type: str = tag("constant_length", "Its name.")
    length: Scheduled[int] = option(
        REQUIRED, "Tokens of the longest trajectory, or another constant in their place.", ge=1
    )

    def weights(self, batch: TokenBatch) -> np.ndarray:
        return np.full(batch.num_actions, 1.0 / self.length, np.float32)


def _shares(batch: TokenBatch, unit: np.ndarray) -> np.ndarray:
    sizes = np.bincount(unit, weights=batch.kept)
    return (1.0 / np.maximum(sizes, 1.0)[unit]).astype(np.float32)
