"""Values of states by play: no value function is asked."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from rllib_lmgame.learners.advantages.gae import next_values
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.settings.schema import limits


class Vine:
    """``A_u = R_u + gamma V_{u+1} - V_u`` (VinePPO, arXiv 2410.01679, with a turn as a step), where ``R_u`` is the sum
    of the rewards of turn ``u`` and ``V_u`` the mean return of rollouts from the state before it, by the policy that
    played it; ``gamma`` counts turns, and every token of a turn has the turn's advantage.

    ``V`` after the last turn is 0, also where the trajectory was cut short: nobody can play on from there, so rollouts
    from earlier states count nothing beyond such an end either.

    Args:
        rollouts: From each state; the paper's 9.
    """

    needs_critic = False
    reads = ("gamma",)

    def __init__(self, rollouts: Annotated[int, limits(low=1)] = 9) -> None:
        self.state_rollouts = rollouts

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        """Advantages, float32 ``[A]``.

        Raises:
            ValueError: Nobody has played from the states.
        """
        if inputs.turn_values is None or np.isnan(inputs.turn_values).any():
            raise ValueError("advantage estimator `vine` needs values of states, but no rollouts from them were played")
        values, ranges = inputs.turn_values.astype(np.float64), inputs.turn_ranges
        following = next_values(values, np.zeros(len(ranges) - 1), ranges)
        return inputs.turn_per_token(inputs.turn_rewards + inputs.gamma * following - values).astype(np.float32)
