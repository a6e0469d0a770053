"""Generalised advantage estimation: from token to token, from turn to turn, and on both levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_lmgame.base.group import option, tag
from rllib_lmgame.base.plugin import LazyModule
from rllib_lmgame.learners.advantages.inputs import (
    AdvantageInputs,
    Estimator,
    discounted_sums,
    gae_with,
    next_values,
    token_gae,
)

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")


class GAE(Estimator):
    """``A_t = r_t + gamma V_{t+1} - V_t + gamma lambda A_{t+1}``, from token to token (arXiv 1506.02438).

    VAPO's lambda (arXiv 2504.05118) grows with the ``l`` tokens of a trajectory: ``max(0, 1 - 1 / (alpha l))``.
    The value function's target keeps the configured lambda (VC-PPO, arXiv 2503.01491).
    """

    type: str = tag("gae", "Its name.")
    length_adaptive: float | None = option(
        None,
        "alpha of VAPO (2504.05118): lambda of a trajectory of l tokens is 1 - 1 / (alpha l), at least 0. Null takes "
        "`lambda`.",
        gt=0,
    )

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        if self.length_adaptive is None:
            return token_gae(inputs)
        lengths = np.diff(inputs.offsets)
        lam = np.maximum(0.0, 1.0 - 1.0 / (self.length_adaptive * np.maximum(lengths, 1)))
        return gae_with(inputs, inputs.per_token(lam)).astype(np.float32)


class TurnGAE(Estimator):
    """The same from turn to turn: one action is a whole reply, its state what the player saw before it; ``gamma`` and
    ``lambda`` count turns (arXiv 1506.02438).

    ``delta_u = R_u + gamma V_{u+1} - V_u`` and ``A_u = delta_u + gamma lam A_{u+1}`` (Schulman et al. 2016, eq. 16),
    where ``R_u`` is the sum of the rewards of turn ``u`` and ``V_u`` the value at its first token. Every token of a
    turn has the turn's advantage. ``V`` after the last turn is ``bootstrap``.
    """

    type: str = tag("turn_gae", "Its name.")

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        return inputs.turn_per_token(_turn_advantages(inputs, inputs.lam)).astype(np.float32)

    def value_targets(self, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
        """Lambda return of the turn at each of its tokens, float32 ``[A]``; with ``monte_carlo`` lambda is 1."""
        of_turns = _turn_advantages(inputs, 1.0 if monte_carlo else inputs.lam) + _first_values(inputs)
        return inputs.turn_per_token(of_turns).astype(np.float32)


def _first_values(inputs: AdvantageInputs) -> np.ndarray:
    return inputs.values[inputs.turn_offsets[:-1]].astype(np.float64)


def _turn_advantages(inputs: AdvantageInputs, lam: float) -> np.ndarray:
    values, ranges = _first_values(inputs), inputs.turn_ranges
    deltas = inputs.turn_rewards + inputs.gamma * next_values(values, inputs.bootstrap, ranges) - values
    return discounted_sums(deltas, inputs.gamma * lam, ranges)


class BilevelGAE(Estimator):
    """At the last token of a turn GAE from turn end to turn end; before it GAE inside the turn, from token to token
    (RAGEN, arXiv 2504.20073; VAGEN, arXiv 2510.16907).

    At the last token of turn ``u``, ``A_u = delta_u + gamma_turn lambda_turn A_{u+1}`` with ``delta_u = r_u +
    gamma_turn (p_{u+1} + V_{u+1}) - V_u``. ``r_u`` and ``V_u`` are reward and value at that token. ``p_u`` is the sum
    of the rewards on the tokens before it (there are some only where the KL penalty is in the rewards). ``V`` after the
    last turn is ``bootstrap``. Before the last token ``A_t = r_t + gamma V_{t+1} - V_t + gamma lam A_{t+1}``. So a long
    reply does not dilute what comes after it.
    """

    type: str = tag("bilevel_gae", "Its name.")
    turn_gamma: float | None = option(None, "Discount per turn; null takes `gamma`, which then is both.", ge=0, le=1)
    turn_lambda: float | None = option(None, "Lambda per turn; null takes `lambda`.", ge=0, le=1)

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        turn_lambda = inputs.lam if self.turn_lambda is None else self.turn_lambda
        return self._advantages(inputs, inputs.lam, turn_lambda).astype(np.float32)

    def value_targets(self, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
        """Advantages plus values, float32 ``[A]``; with ``monte_carlo`` both lambdas are 1."""
        if monte_carlo:
            return (self._advantages(inputs, 1.0, 1.0) + inputs.values).astype(np.float32)
        return self(inputs) + inputs.values

    def _advantages(self, inputs: AdvantageInputs, lam: float, turn_lambda: float) -> np.ndarray:
        turn_gamma = inputs.gamma if self.turn_gamma is None else self.turn_gamma
        values, ends, ranges = inputs.values.astype(np.float64), inputs.turn_offsets[1:] - 1, inputs.turn_ranges
        last = inputs.rewards[ends]
        following = next_values(inputs.turn_rewards - last + values[ends], inputs.bootstrap, ranges)
        of_turns = discounted_sums(last + turn_gamma * following - values[ends], turn_gamma * turn_lambda, ranges)
        inside = next_values(values, np.zeros(len(ends)), inputs.turn_offsets)
        deltas = inputs.rewards + inputs.gamma * inside - values
        deltas[ends] = of_turns
        return discounted_sums(deltas, inputs.gamma * lam, inputs.turn_offsets)
