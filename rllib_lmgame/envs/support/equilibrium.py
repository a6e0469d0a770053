"""Equilibria of games for two that can be walked through and whose payoffs sum to zero: what their experts play."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rllib_lmgame.envs.contract.sequence_form import GameTree, backed_up, sequence_probabilities, walked
from rllib_lmgame.envs.contract.tree import TextTreeGame

Odds = Mapping[tuple[int, str], Mapping[str, float]]
"""Seat and what it sees -> probabilities of its actions."""


def equilibrium_odds(game: TextTreeGame, iterations: int) -> Odds:
    """How to play everywhere in ``game``, whose observations must tell all its information sets apart.

    Raises: ValueError: if they do not, or the game is not for two or not of sum zero.
    """
    tree = walked(game)
    odds = np.split(equilibrium(tree, iterations), tree.starts[1:-1])
    found = {
        (at.seat, at.observation): dict(zip(at.legal_actions, part.tolist(), strict=True))
        for at, part in zip(tree.information_sets, odds, strict=True)
    }
    if len(found) < len(tree.information_sets):
        raise ValueError(f"observations of {type(game).__name__} do not tell its information sets apart")
    return found


def equilibrium(tree: GameTree, iterations: int) -> np.ndarray:
    """float64 ``[moves]``: probabilities of the moves, by CFR+ (O. Tammelin, Solving Large Imperfect Information Games
    Using CFR+, arXiv 1407.5042): regrets are never below zero, players change in turn, and the strategies are averaged
    with weights that grow with the iteration.

    Raises: ValueError: if the game is not for two, or its payoffs do not sum to zero.
    """
    if len(tree.agents) != 2 or np.abs(tree.payoffs.sum(1)).max() > 1e-9:
        raise ValueError("an equilibrium is computed of games for two whose payoffs sum to zero")
    sizes, own_of_move = np.diff(tree.starts), np.repeat(tree.seats, np.diff(tree.starts))
    regrets, total = np.zeros(len(own_of_move)), np.zeros(len(own_of_move))
    for iteration in range(1, iterations + 1):
        for seat in (0, 1):
            policy = _shares(tree, regrets)
            made = sequence_probabilities(tree, policy)
            weight = tree.chance * made[tree.last_moves[:, 1 - seat]] * tree.payoffs[:, seat]

            def worth(value: np.ndarray, policy: np.ndarray = policy) -> np.ndarray:
                return np.add.reduceat(policy * value, tree.starts[:-1])

            value = backed_up(tree, seat, weight, worth)[1:]
            own = own_of_move == seat
            regrets[own] = np.maximum(regrets + value - np.repeat(worth(value), sizes), 0)[own]
            total[own] += iteration * made[:-1][own]
    return _shares(tree, total)


def _shares(tree: GameTree, weights: np.ndarray) -> np.ndarray:
    """float64 ``[moves]``: weights of the moves of each information set as shares of it, all alike where all are 0."""
    sizes, starts = np.diff(tree.starts), tree.starts[:-1]
    whole = np.repeat(np.add.reduceat(weights, starts), sizes)
    return np.where(whole > 0, weights / np.where(whole > 0, whole, 1), np.repeat(1 / sizes, sizes))
