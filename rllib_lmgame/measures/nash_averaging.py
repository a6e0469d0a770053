"""Nash averaging: how good players are against the field that nobody can exploit (D. Balduzzi et al., "Re-evaluating
evaluation", 2018).

"Choose a player" is a symmetric zero-sum game. Of its equilibria the one of maximum entropy is taken: it is unique, and
a copy of a player shares that player's weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ZERO = 1e-7
"""Weight that counts as none: the linear programs' precision."""


@dataclass(frozen=True)
class NashAverage:
    """The equilibrium of maximum entropy, ``weights`` ``[players]``: who is in the field, and how much.

    ``scores`` ``[players]`` are mean pay-offs against that field: 0 for those in it, never above.
    """

    weights: np.ndarray
    scores: np.ndarray


def nash_average(payoffs: np.ndarray) -> NashAverage:
    """The Nash average of a tournament: ``[players, players]``, what the row's player gets against the column's.

    Raises: ValueError: if it is not antisymmetric.
    """
    matrix = np.asarray(payoffs, dtype=float)
    if matrix.ndim != 2 or not len(matrix) or not np.allclose(matrix, -matrix.T, atol=1e-12, rtol=1e-9):
        raise ValueError("the pay-offs of a zero-sum game are the negative of their transpose")
    matrix = (matrix - matrix.T) / 2
    scaled = matrix / (np.abs(matrix).max() or 1.0)
    corners = _corners(scaled)
    support = np.flatnonzero(corners.max(0) > ZERO)
    weights = np.zeros(len(matrix))
    weights[support] = _most_entropic(scaled[:, support], support)
    return NashAverage(weights, np.minimum(matrix @ weights, 0.0) + 0.0)


def _corners(matrix: np.ndarray) -> np.ndarray:
    """Per player an equilibrium in which its weight is largest, ``[players, players]``."""
    from scipy.optimize import linprog

    players = len(matrix)
    found = []
    for player in range(players):
        aim = np.zeros(players)
        aim[player] = -1.0
        solved = linprog(
            aim, A_ub=matrix, b_ub=np.zeros(players), A_eq=np.ones((1, players)), b_eq=[1.0], method="highs"
        )
        if not solved.success:
            raise RuntimeError(f"no equilibrium was found: {solved.message}")
        found.append(solved.x)
    return np.array(found)


def _most_entropic(columns: np.ndarray, support: np.ndarray) -> np.ndarray:
    """The weights of maximum entropy among the equilibria, all of whose players are the ``columns``.

    An equilibrium pays players of the support exactly 0 and others at most 0: linear constraints. So the solution is
    ``exp(-columns^T multipliers)``, normalised, with the multipliers that minimise its logarithmic sum (of the others
    at least 0).

    Args:
        columns: ``[players, support]``.
        support: Which of the players they are.
    """
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    def dual(multipliers: np.ndarray) -> tuple[float, np.ndarray]:
        exponents = -columns.T @ multipliers
        return float(logsumexp(exponents)), -columns @ softmax(exponents)

    inside = np.isin(np.arange(len(columns)), support)
    bounds = [(None, None) if within else (0.0, None) for within in inside]
    solved = minimize(
        dual,
        np.zeros(len(columns)),
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"ftol": 0.0, "gtol": 1e-12, "maxiter": 10_000, "maxfun": 100_000},
    )
    return np.asarray(softmax(-columns.T @ solved.x))
