"""Returns against those of the group: trajectories of one game, one seed and one role.

All tokens of a trajectory have its advantage. A return is the sum of a trajectory's rewards, not discounted; a
trajectory without action tokens has none that is known and is left out. Nothing can be said of a trajectory that is
alone in its group: its advantage is 0.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.settings.schema import limits

Epsilon = Annotated[float, limits(above=0)]
ROUNDING = 1e-6
"""A mean of returns no larger than this, as a multiple of the mean of their sizes, is what rounding left."""


class GroupRelative:
    """What estimators that compare whole trajectories have in common."""

    needs_groups = True
    needs_critic = False
    reads: tuple[str, ...] = ()
    own_scale = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        """Advantages, float32 ``[A]``."""
        played = np.diff(inputs.offsets) > 0
        advantages = np.zeros(len(played))
        advantages[played] = self.of_trajectories(
            inputs.returns[played], inputs.groups[played], np.array(inputs.episodes, object)[played]
        )
        return inputs.per_token(advantages).astype(np.float32)

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        """Advantages, float64 ``[N]``.

        Args:
            returns: float64 ``[N]``.
            groups: int64 ``[N]``.
            episodes: Ids ``[N]``; with several seats of one role a group has several trajectories of an episode.
        """
        raise NotImplementedError


class GRPO(GroupRelative):
    """``(r - mean) / (std + epsilon)`` (DeepSeekMath, arXiv 2402.03300, sec. 4.1.2), ``std`` with the number of
    trajectories less one, as TRL and verl have it.

    Args:
        std_epsilon: Added to the deviation.
    """

    def __init__(self, std_epsilon: Epsilon = 1e-6) -> None:
        self._epsilon = std_epsilon

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        centred = returns - group_means(returns, groups)
        return centred / (group_deviations(returns, groups) + self._epsilon)


class DrGRPO(GroupRelative):
    """``r - mean`` (Dr. GRPO, arXiv 2503.20783): a level that is won by half is not worth more than another."""

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        return returns - group_means(returns, groups)


class RLOO(GroupRelative):
    """``r`` less the mean of the others (REINFORCE leave-one-out, arXiv 2402.14740).

    The others are the trajectories of the other episodes: two seats of one role in one episode depend on each other, so
    that one of them is no baseline for the other.
    """

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        _, number = np.unique(episodes.astype(str), return_inverse=True)
        _, own = np.unique(groups * (number.max(initial=0) + 1) + number, return_inverse=True)
        others = _counts(groups) - _counts(own)
        centred = returns - _member(returns, groups)
        sums = _sums(centred, groups) - _sums(centred, own)
        return np.where(others > 0, centred - sums / np.maximum(others, 1), 0.0)


class MaxRL(GroupRelative):
    """``(r - mean) / mean``, 0 where the mean is not positive (MaxRL, arXiv 2602.02710): for returns of 0 and 1, of
    which rare ones count more.

    Where returns cancel out, what rounding leaves of their mean (less than :data:`ROUNDING` of their size) is none.
    """

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        means = group_means(returns, groups)
        positive = means > ROUNDING * group_means(np.abs(returns), groups)
        return np.where(positive, (returns - means) / np.where(positive, means, 1.0), 0.0)


def group_means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Mean of each one's group, float64 ``[N]``; exactly their value where all are equal."""
    member = _member(values, groups)
    return member + _sums(values - member, groups) / _counts(groups)


def _member(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The value of one of each one's group, float64 ``[N]``: differences from it are exactly 0 where all are equal."""
    members = np.zeros(groups.max(initial=-1) + 1)
    members[groups] = values
    return members[groups]


def group_deviations(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Standard deviation of each one's group, over its number less one, float64 ``[N]``; 0 for one that is alone."""
    squares = _sums((values - group_means(values, groups)) ** 2, groups)
    return np.sqrt(squares / np.maximum(_counts(groups) - 1, 1))


def _sums(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.bincount(groups, weights=values)[groups]


def _counts(groups: np.ndarray) -> np.ndarray:
    return np.bincount(groups)[groups]
