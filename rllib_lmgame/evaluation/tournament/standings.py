"""Standings of the players from the games' results; the order of the games does not matter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from rllib_lmgame.envs.contract.verdicts import Outcome
from rllib_lmgame.evaluation.tournament.results import GameResult, SeatResult
from rllib_lmgame.measures.ratings import Comparison, Rating, ratings, win_matrix
from rllib_lmgame.measures.statistics import mean_interval, rate_over_levels

STANDINGS_FILE = "standings.json"
WINS, RETURN = "wins", "return"


@dataclass(frozen=True)
class Standing:
    """One player's numbers in one game; intervals are 95 % over levels.

    Attributes:
        seats: Seats it took to the end of a game.
        payoff: Mean per game of what its seats got, with its interval.
        wins, draws, losses: Of those seats.
        rate: Mean over games of the share of wins, in games that are not zero-sum of success, with its interval; its
            bounds are NaN for one level. A game counts once, however many seats the player took.
        rating: Bradley-Terry rating of games that are told by wins.
    """

    player: str
    seats: int
    payoff: tuple[float, float, float] | None = None
    wins: int = 0
    draws: int = 0
    losses: int = 0
    rate: tuple[float, float, float] | None = None
    rating: Rating | None = None


@dataclass(frozen=True)
class Standings:
    """What one game of a tournament came to.

    Attributes:
        zero_sum: It is told by wins, draws and losses.
        by: What players are ranked by: :data:`WINS` (their rating), or :data:`RETURN` (what they get).
        players: In that order.
        returns: ``[players, players]``: what the row's player gets on average at a table with the column's.
        matrix: By wins the row's share of points against the column (a draw is half a point), otherwise
            :attr:`returns`. NaN where they never met.
    """

    game: str
    zero_sum: bool
    by: str
    games: int
    players: tuple[Standing, ...]
    matrix: np.ndarray = field(repr=False)
    returns: np.ndarray = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data; what is not known is ``None``."""
        content = {**vars(self), "players": [vars(standing) for standing in self.players]}
        matrices = {"matrix": self.matrix.tolist(), "returns": self.returns.tolist()}
        plain: dict[str, Any] = _plain({**content, **matrices})
        return plain


def write_csv(standings: Standings, path: Path) -> None:
    """Mean pay-offs: of the row's player at a table with the column's."""
    import pandas as pd

    names = [player.player for player in standings.players]
    pd.DataFrame(standings.returns, names, names).to_csv(path, index_label=standings.game, float_format="%.6g")


def is_zero_sum(results: Sequence[GameResult], declared: bool | None) -> bool:
    """Whether a game is told by wins: it ``declared`` so, or results always sum to 0 and are not all 0."""
    if declared or not results:
        return bool(declared)
    if any(seat.outcome is None for result in results for seat in result.seats):
        return False
    sums = [abs(sum(seat.payoff for seat in result.seats)) for result in results]
    largest = max((abs(seat.payoff) for result in results for seat in result.seats), default=0.0)
    return largest > 0 and max(sums) <= 1e-6 * largest


def has_stakes(results: Sequence[GameResult]) -> bool:
    """Whether more is at stake than to win, draw or lose: one outcome pays more in one game than in another."""
    paid: dict[str | None, float] = {}
    for result in results:
        for seat in result.seats:
            first = paid.setdefault(seat.outcome, seat.payoff)
            if not math.isclose(first, seat.payoff, rel_tol=1e-6, abs_tol=1e-9):
                return True
    return False


def standings(
    game: str, results: Sequence[GameResult], players: Sequence[str], *, zero_sum: bool, by: str = WINS, seed: int = 0
) -> Standings:
    """The standings of one game, of a zero-sum game ``by`` wins or return; ``seed`` is that of the bootstrap."""
    results = sorted(results, key=lambda result: result.episode_id)
    by = by if zero_sum else RETURN
    rated: Mapping[str, Rating] = {}
    if by == WINS:
        by_level: dict[str, list[Comparison]] = {}  # Ratings draw levels anew, not games.
        for result in results:
            by_level.setdefault(result.played_on, []).extend(result.comparisons)
        rated = ratings(list(by_level.values()), players, seed=seed)
    found = [_standing(results, player, zero_sum, rated.get(player)) for player in players]
    order = sorted(range(len(players)), key=lambda i: (-_strength(found[i]), players[i]))
    returns = _mean_payoffs(results, players)
    matrix = _scores(results, players) if by == WINS else returns
    there = np.ix_(order, order)
    return Standings(game, zero_sum, by, len(results), tuple(found[i] for i in order), matrix[there], returns[there])


def _standing(results: Sequence[GameResult], player: str, zero_sum: bool, rating: Rating | None) -> Standing:
    def reached(seat: SeatResult) -> bool | None:
        if zero_sum:
            return None if seat.outcome is None else seat.outcome == Outcome.WIN
        return seat.success

    counts = Counter(seat.outcome for result in results for seat in result.seats if seat.player == player)
    payoffs, seen = _per_game(results, player, lambda seat: seat.payoff)
    shares, levels = _per_game(results, player, reached)
    rate = rate_over_levels(shares, levels) if shares else None
    return Standing(
        player,
        counts.total(),
        payoff=mean_interval(payoffs, seen) if payoffs else None,
        wins=counts[Outcome.WIN],
        draws=counts[Outcome.DRAW],
        losses=counts[Outcome.LOSS],
        rate=None if rate is None else (rate.mean, *(rate.interval or (math.nan, math.nan))),
        rating=rating,
    )


def _per_game(
    results: Sequence[GameResult], player: str, value: Callable[[SeatResult], float | None]
) -> tuple[list[float], list[str]]:
    """Mean of ``value`` over the player's seats of each game, of those where it says something, and the levels."""
    means, levels = [], []
    for result in results:
        values = [value(seat) for seat in result.seats if seat.player == player]
        known = [float(v) for v in values if v is not None]
        if known:
            means.append(fmean(known))
            levels.append(result.played_on)
    return means, levels


def _strength(standing: Standing) -> float:
    if standing.rating is not None:
        return standing.rating.rating
    return -math.inf if standing.payoff is None else standing.payoff[0]


def _scores(results: Sequence[GameResult], players: Sequence[str]) -> np.ndarray:
    wins = win_matrix([result.comparisons for result in results], players)
    met = wins + wins.T
    return np.divide(wins, met, out=np.full_like(wins, np.nan), where=met > 0)


def _mean_payoffs(results: Sequence[GameResult], players: Sequence[str]) -> np.ndarray:
    index = {player: i for i, player in enumerate(players)}
    total, count = (np.zeros((len(players), len(players))) for _ in range(2))
    for result in results:
        for seat in result.seats:
            for other in {another.player for another in result.seats} - {seat.player}:
                total[index[seat.player], index[other]] += seat.payoff
                count[index[seat.player], index[other]] += 1
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _plain(value: Any) -> Any:
    """``value`` as JSON has it: numbers that are none become ``None``, keys without a value are left out."""
    if isinstance(value, Rating):
        return _plain([value.rating, value.low, value.high])
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
