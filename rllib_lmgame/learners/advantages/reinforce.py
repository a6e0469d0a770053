"""Returns to go, as they are and whitened, without comparison or value function.

Time runs over sampled tokens alone: observations between replies neither discount nor end a return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_lmgame.base.group import tag
from rllib_lmgame.base.plugin import LazyModule
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs, Estimator, normalize, rewards_to_go

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")


class Reinforce(Estimator):
    """``G_t = r_t + gamma G_{t+1}``, nothing after a cut and without a baseline (Williams 1992)."""

    type: str = tag("reinforce", "Its name.")

    needs_critic = False
    own_scale = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        return rewards_to_go(inputs).astype(np.float32)


class ReinforcePP(Estimator):
    """``(G_t - mean) / std`` over all action tokens of all learners (REINFORCE++, arXiv 2501.03262).

    The paper's return counts a KL penalty on each token; here it does where the rewards of the update do.
    """

    type: str = tag("reinforce_pp", "Its name.")

    needs_critic = False
    own_scale = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        """Advantages, float32 ``[A]``; 0 where all returns are equal, else of unit deviation whatever their size."""
        return normalize(rewards_to_go(inputs), "batch", inputs)
