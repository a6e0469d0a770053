"""Group-in-group policy optimisation: trajectories of a level against each other, and replies to the same text."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from rllib_lmgame.learners.advantages.gae import discounted_sums
from rllib_lmgame.learners.advantages.group_relative import Epsilon, group_deviations, group_means
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.settings.schema import limits

EPISODES, STEPS = AVERAGES = ("episodes", "steps")


class GiGPO:
    """``A = A_episode + w A_step`` (GiGPO, arXiv 2505.10978); a step is a turn.

    ``A_episode = (R - mean) / F`` compares the return ``R`` of a trajectory with its group's. ``A_step = (G_u - mean) /
    F`` compares what came after turn ``u``, ``G_u = R_u + gamma G_{u+1}`` with ``gamma`` per turn, over the turns of
    the group before which the player saw the same text; a turn before which nobody else saw it has 0. ``F`` is the
    standard deviation (over the number less one) plus ``std_epsilon``, or 1.

    Args:
        step_weight: ``w``.
        average: What mean and deviation of ``A_episode`` are taken over: ``episodes``, as in the paper's eq. 3, or
            ``steps``, as its code does by default: an episode counts as often as it has turns.
        divide_by_std: Whether ``F`` is the deviation; else 1.
        std_epsilon: Added to it.
    """

    needs_groups = True
    needs_critic = False
    reads = ("gamma",)
    own_scale = True

    def __init__(
        self,
        step_weight: Annotated[float, limits(low=0)] = 1.0,
        average: Annotated[str, limits(choices=AVERAGES)] = EPISODES,
        divide_by_std: bool = True,
        std_epsilon: Epsilon = 1e-6,
    ) -> None:
        self._step_weight = step_weight
        self._average = average
        self._divide = divide_by_std
        self._epsilon = std_epsilon

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        """Advantages, float32 ``[A]``."""
        of_turns = self._of_episodes(inputs) + self._step_weight * self._of_steps(inputs)
        return inputs.turn_per_token(of_turns).astype(np.float32)

    def _of_episodes(self, inputs: AdvantageInputs) -> np.ndarray:
        """``A_episode`` at each turn, float64 ``[U]``."""
        trajectory = _trajectories(inputs)
        if self._average == STEPS:
            return self._compared(inputs.returns[trajectory], inputs.groups[trajectory])
        played = np.unique(trajectory)
        advantages = np.zeros(len(inputs.groups))
        advantages[played] = self._compared(inputs.returns[played], inputs.groups[played])
        return advantages[trajectory]

    def _of_steps(self, inputs: AdvantageInputs) -> np.ndarray:
        """``A_step``, float64 ``[U]``."""
        returns = discounted_sums(inputs.turn_rewards, inputs.gamma, inputs.turn_ranges)
        seen = np.stack([inputs.groups[_trajectories(inputs)], inputs.turn_observations], axis=1)
        _, anchors = np.unique(seen, axis=0, return_inverse=True)
        return self._compared(returns, anchors.reshape(-1))

    def _compared(self, values: np.ndarray, groups: np.ndarray) -> np.ndarray:
        centred = values - group_means(values, groups)
        return centred / (group_deviations(values, groups) + self._epsilon) if self._divide else centred


def _trajectories(inputs: AdvantageInputs) -> np.ndarray:
    """Whose each turn is, int64 ``[U]``."""
    return np.repeat(np.arange(len(inputs.groups)), np.diff(inputs.turn_ranges))
