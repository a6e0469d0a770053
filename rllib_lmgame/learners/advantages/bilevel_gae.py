"""Generalised advantage estimation on two levels: from turn to turn, and from token to token inside a turn."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from rllib_lmgame.learners.advantages.gae import discounted_sums, next_values
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.settings.schema import limits

Share = Annotated[float | None, limits(low=0, high=1)]


class BilevelGAE:
    """Bi-level GAE of RAGEN (arXiv 2504.20073) and VAGEN (arXiv 2510.16907).

    The last token of a turn has the advantage of the turn, ``A_u = delta_u + gamma_turn lambda_turn A_{u+1}`` with
    ``delta_u = r_u + gamma_turn (p_{u+1} + V_{u+1}) - V_u``, where ``r_u`` is the reward on the turn's last token,
    ``p_u`` the sum of those on the tokens before it (there are some with ``kl_in: reward`` only), ``V_u`` the value at
    the last token and ``V`` after the last turn ``bootstrap``. The tokens before it follow inside the turn, ``A_t = r_t
    + gamma V_{t+1} - V_t + gamma lam A_{t+1}``. So a long reply does not dilute what comes after it.

    Args:
        turn_gamma: Discount per turn; ``None`` takes ``gamma``, which then stands for both.
        turn_lambda: Lambda per turn; ``None`` takes ``lambda``.
    """

    reads = ("gamma", "lam")

    def __init__(self, turn_gamma: Share = None, turn_lambda: Share = None) -> None:
        self._gamma = turn_gamma
        self._lambda = turn_lambda

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        """Advantages, float32 ``[A]``."""
        turn_lambda = inputs.lam if self._lambda is None else self._lambda
        return self._advantages(inputs, inputs.lam, turn_lambda).astype(np.float32)

    def value_targets(self, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
        """Advantages plus values, float32 ``[A]``: the target of the value function.

        Args:
            inputs: Of the update.
            monte_carlo: The discounted rewards themselves: both lambdas 1.
        """
        if monte_carlo:
            return (self._advantages(inputs, 1.0, 1.0) + inputs.values).astype(np.float32)
        return self(inputs) + inputs.values

    def _advantages(self, inputs: AdvantageInputs, lam: float, turn_lambda: float) -> np.ndarray:
        """float64 ``[A]``."""
        turn_gamma = inputs.gamma if self._gamma is None else self._gamma
        values, ends, ranges = inputs.values.astype(np.float64), inputs.turn_offsets[1:] - 1, inputs.turn_ranges
        last = inputs.rewards[ends]
        following = next_values(inputs.turn_rewards - last + values[ends], inputs.bootstrap, ranges)
        of_turns = discounted_sums(last + turn_gamma * following - values[ends], turn_gamma * turn_lambda, ranges)
        inside = next_values(values, np.zeros(len(ends)), inputs.turn_offsets)
        deltas = inputs.rewards + inputs.gamma * inside - values
        deltas[ends] = of_turns
        return discounted_sums(deltas, inputs.gamma * lam, inputs.turn_offsets)
