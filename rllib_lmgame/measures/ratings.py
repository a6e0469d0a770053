"""Strength from results of games: win matrices, and Bradley-Terry ratings on Elo's scale.

i beats j with probability ``1 / (1 + 10 ** ((r_j - r_i) / 400))`` (R. A. Bradley and M. E. Terry, Biometrika 39, 1952).
Ratings make the results most likely, whatever their order. A draw is half a win for each side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

ELO_SCALE = 400.0 / math.log(10.0)
"""Points of rating per unit of log-odds."""

SMOOTHING = 0.01
"""Wins added for each side of every pair, so that who won or lost every game has a finite rating."""

Comparison = tuple[str, str, float]
"""A player, another one, and the first one's score: 1 won, 0.5 drawn, 0 lost."""

Game = Sequence[Comparison]
"""What one game says of its players: several pairs at larger tables, none where one player has all seats."""


@dataclass(frozen=True)
class Rating:
    """A rating with the bounds of its confidence interval; all players' mean is 0."""

    rating: float
    low: float
    high: float


def win_matrix(games: Iterable[Game], players: Sequence[str]) -> np.ndarray:
    """Wins of the row's player over the column's, ``[players, players]``; a draw is half a win for both.

    Raises: ValueError: a score is not between 0 and 1, or somebody is none of ``players``.
    """
    index = {player: i for i, player in enumerate(players)}
    wins = np.zeros((len(index), len(index)))
    for game in games:
        for first, second, score in game:
            if not 0 <= score <= 1 or not {first, second} <= index.keys():
                raise ValueError(f"{first!r} against {second!r}, score {score}: no result of {', '.join(players)}")
            wins[index[first], index[second]] += score
            wins[index[second], index[first]] += 1 - score
    return wins


def bradley_terry(wins: np.ndarray, smoothing: float = SMOOTHING) -> np.ndarray:
    """Maximum-likelihood ratings on Elo's scale, ``[..., players]``, with mean 0.

    ``wins`` are ``[..., players, players]`` as of :func:`win_matrix`; ``smoothing`` (above 0) is added for each side of
    a pair. The likelihood is concave. Newton's steps are damped by ``log(1 + d) / d``, with ``d`` the widest difference
    a step makes, so they never overshoot (T. Sun and Q. Tran-Dinh, Math. Programming 178, 2019).
    """
    players = wins.shape[-1]
    won = (wins + smoothing) * (1 - np.eye(players))
    met = won + np.swapaxes(won, -1, -2)
    log_strength = np.zeros(wins.shape[:-1])
    for _ in range(500):
        chance = 0.5 * (1.0 + np.tanh(0.5 * (log_strength[..., :, None] - log_strength[..., None, :])))
        gradient = won.sum(-1) - (met * chance).sum(-1)
        weight = met * chance * (1 - chance)
        # Ones in place of the direction that changes nothing: all ratings moved together.
        curvature = weight.sum(-1)[..., None] * np.eye(players) - weight + 1.0
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        width = np.maximum(np.ptp(step, axis=-1), 1e-300)[..., None]
        log_strength = log_strength + step * np.log1p(width) / width
        if float(width.max()) < 1e-11:
            break
    return ELO_SCALE * (log_strength - log_strength.mean(-1, keepdims=True))


def ratings(
    games: Iterable[Game], players: Sequence[str], *, resamples: int = 1000, seed: int = 0
) -> dict[str, Rating]:
    """Ratings of ``players`` from ``games``, with bootstrap intervals of 95 %.

    Percentiles over as many games drawn anew, with replacement, from those played and one win more for each side of
    every pair that met. So who won all of few games does not seem to win for certain. The same games give the same
    intervals, in whatever order they and the players come.

    Raises: ValueError: as :func:`win_matrix`.
    """
    names = sorted(players)
    kinds = Counter(tuple(sorted(map(_sided, game))) for game in games)
    pairs = {(first, second) for kind in kinds for first, second, _ in kind}
    possible = {((first, second, score),) for first, second in pairs for score in (0.0, 1.0)}
    ordered = sorted(kinds.keys() | possible)
    counts = np.array([kinds[kind] for kind in ordered], dtype=np.int64)
    drawn_from = counts + np.array([kind in possible for kind in ordered])
    each = np.array([win_matrix([kind], names) for kind in ordered]).reshape(len(ordered), len(names), len(names))
    point = bradley_terry(np.tensordot(counts.astype(float), each, axes=1))
    unknown = Rating(0.0, -math.inf, math.inf)
    if not pairs:
        return dict.fromkeys(players, unknown)
    total = int(counts.sum())
    chances = drawn_from / drawn_from.sum()
    drawn = np.random.default_rng(seed).multinomial(total, chances, size=resamples).astype(float)
    sampled = bradley_terry(np.tensordot(drawn, each, axes=1))
    low, high = np.quantile(sampled, (0.025, 0.975), axis=0)
    bounds = np.stack([point, np.minimum(low, point), np.maximum(high, point)], axis=1)
    found = dict(zip(names, bounds.tolist(), strict=True))
    met = {player for pair in pairs for player in pair}
    return {player: Rating(*found[player]) if player in met else unknown for player in players}


def _sided(comparison: Comparison) -> Comparison:
    first, second, score = comparison
    return (first, second, float(score)) if first <= second else (second, first, 1.0 - score)
