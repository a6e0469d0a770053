"""Measures of games in which all decide at once: cooperation, welfare, and how far strategies are from best responses.

The games of :mod:`rllib_lmgame.envs.games.dilemmas` report these numbers of every episode (``info["measures"]``); here
they stand for logs, for tables of many episodes and for mixed strategies.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np


def cooperation_rate(actions: Sequence[Hashable], cooperative: Hashable) -> float:
    """Share of ``actions`` that are the ``cooperative`` one.

    Raises:
        ValueError: if there are no actions.
    """
    if not actions:
        raise ValueError("no actions, so no cooperation rate")
    return sum(action == cooperative for action in actions) / len(actions)


def social_welfare(returns: Sequence[float], best: float) -> float:
    """Sum of the players' returns relative to the largest sum they could have had.

    Args:
        returns: One per player.
        best: That sum, more than 0.

    Raises:
        ValueError: if ``best`` is not positive: a share of it says nothing then.
    """
    if not best > 0:
        raise ValueError(f"the best sum of returns is {best}; it must be positive")
    return sum(returns) / best


def payoff_arrays(matrix: Mapping[tuple[str, str], float], actions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Pay-offs of both players ``[actions of the first, actions of the second]`` in a symmetric game.

    Args:
        matrix: (own action, the other's) -> own pay-off, as a
            :class:`~rllib_lmgame.envs.games.dilemmas.matrix_game.MatrixGame` has it.
        actions: Their order.
    """
    own = np.array([[matrix[one, two] for two in actions] for one in actions], dtype=float)
    return own, own.T


def best_response_gaps(payoffs: Sequence[np.ndarray], strategies: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """What each player gains by a best response while the others keep their mixed strategies; all 0 in an equilibrium,
    and their sum is the game's NashConv.

    Args:
        payoffs: Per player its pay-offs, ``[actions of player 0, actions of player 1, ...]``.
        strategies: Per player the probabilities of its actions.

    Raises:
        ValueError: if a strategy is no distribution over the player's actions.
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
