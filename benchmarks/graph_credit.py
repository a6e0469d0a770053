"""An estimator of ``estimators.py``: GiGPO whose turns count the best return that their group found after them."""

from __future__ import annotations

import numpy as np

from rllib_lmgame.learners.advantages import AdvantageInputs
from rllib_lmgame.learners.advantages.without_critic import GiGPO


class GraphCredit(GiGPO):
    """``G_u = R_u + gamma max G`` over the group's turns before which the player saw the next text.

    Those are shortest ways in the graph of a group's states (GraphGPO, arXiv 2605.26684), as returns. Ways are at most
    as long as the group's longest trajectory.
    """

    def turn_returns(self, inputs: AdvantageInputs, states: np.ndarray) -> np.ndarray:
        turns = np.diff(inputs.turn_ranges)
        lengths = np.zeros(inputs.groups.max(initial=-1) + 1, np.int64)
        np.maximum.at(lengths, inputs.groups, turns)
        most = np.repeat(lengths[inputs.groups], turns)
        ends = np.zeros(len(states), bool)
        ends[inputs.turn_ranges[1:][turns > 0] - 1] = True
        rewards = best = np.asarray(inputs.turn_rewards, np.float64)
        for number in range(1, lengths.max(initial=0)):
            values = np.full(states.max() + 1, -np.inf)
            np.maximum.at(values, states, best)
            more = rewards + np.where(ends, 0.0, inputs.gamma * np.roll(values[states], -1))
            best = np.where(number < most, more, best)
        return best
