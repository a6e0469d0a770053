"""Generalised advantage estimation whose steps are turns: a discount is applied once per turn."""

from __future__ import annotations

import numpy as np

from rllib_lmgame.learners.advantages.gae import discounted_sums, next_values
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs


class TurnGAE:
    """One action is a whole reply, its state what the player saw before it; ``gamma`` and ``lam`` count turns.

    ``delta_u = R_u + gamma V_{u+1} - V_u`` and ``A_u = delta_u + gamma lam A_{u+1}`` (Schulman et al. 2016, eq. 16),
    where ``R_u`` is the sum of the rewards of turn ``u`` and ``V_u`` the value at its first token; every token of a
    turn has the turn's advantage. ``V`` after the last turn is ``bootstrap``.
    """

    reads = ("gamma", "lam")

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        """Advantages, float32 ``[A]``."""
        return inputs.turn_per_token(_of_turns(inputs, inputs.lam)).astype(np.float32)

    def value_targets(self, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
        """Lambda return of the turn at each of its tokens, float32 ``[A]``.

        Args:
            inputs: Of the update.
            monte_carlo: The discounted rewards themselves: lambda 1.
        """
        of_turns = _of_turns(inputs, 1.0 if monte_carlo else inputs.lam) + _first_values(inputs)
        return inputs.turn_per_token(of_turns).astype(np.float32)


def _first_values(inputs: AdvantageInputs) -> np.ndarray:
    """Value at the first token of each turn, float64 ``[U]``."""
    return inputs.values[inputs.turn_offsets[:-1]].astype(np.float64)


def _of_turns(inputs: AdvantageInputs, lam: float) -> np.ndarray:
    """Advantages, float64 ``[U]``."""
    values, ranges = _first_values(inputs), inputs.turn_ranges
    deltas = inputs.turn_rewards + inputs.gamma * next_values(values, inputs.bootstrap, ranges) - values
    return discounted_sums(deltas, inputs.gamma * lam, ranges)
