"""Values of states by play: no value function is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_lmgame.base.group import option, tag
from rllib_lmgame.base.plugin import LazyModule
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs, Estimator, next_values

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")


class Vine(Estimator):
    """``A_u = R_u + gamma V_{u+1} - V_u`` of turn ``u``, ``gamma`` per turn (VinePPO, arXiv 2410.01679).

    ``V`` is the mean return of rollouts from the state before the turn, by the policy that played it. After the last
    turn it is 0, also where the trajectory was cut short: rollouts from earlier states end there too.
    """

    type: str = tag("vine", "Its name.")
    rollouts: int = option(9, "Rollouts from each state; the paper's number.", ge=1)

    needs_critic = False

    @property
    def state_rollouts(self) -> int:  # type: ignore[override]
        return self.rollouts

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        """Advantages, float32 ``[A]``. Raises: ValueError: Nobody has played from the states."""
        if inputs.turn_values is None or np.isnan(inputs.turn_values).any():
            raise ValueError("advantage estimator `vine` needs values of states, but no rollouts from them were played")
        values, ranges = inputs.turn_values.astype(np.float64), inputs.turn_ranges
        following = next_values(values, np.zeros(len(ranges) - 1), ranges)
        return inputs.turn_per_token(inputs.turn_rewards + inputs.gamma * following - values).astype(np.float32)
