"""Discounted sums over the action tokens of trajectories."""

from __future__ import annotations

import numpy as np

from rllib_lmgame.learners.advantages.inputs import AdvantageInputs


def token_gae(inputs: AdvantageInputs) -> np.ndarray:
    """Generalised advantage estimates, float32 ``[A]``.

    ``delta_t = r_t + gamma V_{t+1} - V_t`` and ``A_t = delta_t + gamma lam A_{t+1}`` (Schulman et al. 2016, eq.
    16), where ``V_{t+1}`` after the last token of a trajectory is ``bootstrap`` and nothing crosses from one
    trajectory into another.
    """
    return gae_with(inputs, inputs.lam).astype(np.float32)


def gae_with(inputs: AdvantageInputs, lam: float | np.ndarray) -> np.ndarray:
    """Generalised advantage estimates, float64 ``[A]``; ``lam`` is a number, or one for each token."""
    deltas = (
        inputs.rewards + inputs.gamma * next_values(inputs.values, inputs.bootstrap, inputs.offsets) - inputs.values
    )
    return discounted_sums(deltas, inputs.gamma * lam, inputs.offsets)


def monte_carlo_returns(inputs: AdvantageInputs) -> np.ndarray:
    """``G_t = r_t + gamma G_{t+1}``, float32 ``[A]``, with ``bootstrap`` after the last token of a trajectory."""
    last = next_values(np.zeros(len(inputs.rewards)), inputs.bootstrap, inputs.offsets)
    return discounted_sums(inputs.rewards + inputs.gamma * last, inputs.gamma, inputs.offsets).astype(np.float32)


def rewards_to_go(inputs: AdvantageInputs) -> np.ndarray:
    """``G_t = r_t + gamma G_{t+1}``, float64 ``[A]``, and nothing after the last token: no value function is asked."""
    return discounted_sums(inputs.rewards, inputs.gamma, inputs.offsets)


def next_values(values: np.ndarray, bootstrap: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Value after each step, float64 ``[A]``; the steps of trajectory ``n`` are ``[offsets[n], offsets[n + 1])``."""
    following = np.empty(len(values), np.float64)
    following[:-1] = values[1:]
    played = offsets[1:] > offsets[:-1]
    following[offsets[1:][played] - 1] = np.asarray(bootstrap)[played]
    return following


def discounted_sums(terms: np.ndarray, factor: float | np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """``S_t = terms_t + factor S_{t+1}`` within each trajectory (or whatever ``offsets`` part), float64 ``[A]``;
    ``factor`` is a number, or one for each ``t``.

    A scan by doubling: after the pass with step ``k`` each entry holds the sum over the next ``2k`` terms. The cost is
    ``A log2(longest trajectory)`` array operations, whatever the shape of the batch, and there is no division that
    could overflow.
    """
    sums = np.array(terms, np.float64)
    weights = np.full(len(sums), factor, np.float64)
    lengths = np.diff(offsets)
    weights[offsets[1:][lengths > 0] - 1] = 0.0
    step, longest = 1, int(lengths.max(initial=0))
    while step < longest:
        sums[:-step] += weights[:-step] * sums[step:]
        weights[:-step] *= weights[step:]
        step *= 2
    return sums
