"""Measures of games in which all decide at once: distance of mixed strategies from best responses.

The games of :mod:`rllib_lmgame.envs.games.dilemmas` also report cooperation and welfare (``info["measures"]``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def payoff_arrays(matrix: Mapping[tuple[str, str], float], actions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Pay-offs of both players ``[actions of the first, actions of the second]`` in a symmetric game.

    ``matrix``: (own action, the other's) -> own pay-off, as in
    :class:`~rllib_lmgame.envs.games.dilemmas.matrix_game.MatrixGame`.
    """
    own = np.array([[matrix[one, two] for two in actions] for one in actions], dtype=float)
    return own, own.T


def best_response_gaps(payoffs: Sequence[np.ndarray], strategies: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """What each player gains by a best response to the others' mixed strategies; NashConv is the sum.

    ``payoffs`` are per player ``[actions of player 0, actions of player 1, ...]``, strategies probabilities of actions.

    Raises: ValueError: if a strategy is no distribution over the player's actions.
    """
    mixed = [np.asarray(strategy, dtype=float) for strategy in strategies]
    shape = tuple(len(strategy) for strategy in mixed)
    for player, (payoff, strategy) in enumerate(zip(payoffs, mixed, strict=True)):
        if np.shape(payoff) != shape:
            raise ValueError(f"pay-offs of player {player} have the shape {np.shape(payoff)}, strategies {shape}")
        if not (np.all(strategy >= 0) and np.isclose(strategy.sum(), 1.0)):
            raise ValueError(f"the strategy of player {player} is no distribution: {strategy.tolist()}")
    gaps = []
    for player, payoff in enumerate(payoffs):
        values = np.moveaxis(np.asarray(payoff, dtype=float), player, 0)
        for strategy in reversed(mixed[:player] + mixed[player + 1 :]):
            values = values @ strategy
        gaps.append(float(values.max() - values @ mixed[player]))
    return tuple(gaps)
