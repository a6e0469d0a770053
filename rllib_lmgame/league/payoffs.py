"""Pay-offs: results of policies against members, and of members against earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_lmgame.envs.contract.verdicts import Outcome

PRIOR_GAMES = 1.0
"""Prior: so many games against each member, half of them won."""

OUTCOMES = (Outcome.WIN, Outcome.DRAW, Outcome.LOSS)


class Payoffs:
    """Decayed games won, drawn and lost by a player (row: policy or member) against a member (column).

    A member's row is its policy's at the time of the snapshot, so the matrix also compares members.
    """

    def __init__(self) -> None:
        self._results: dict[str, dict[str, list[float]]] = {}

    def decay(self, player: str, factor: float) -> None:
        for record in self._results.get(player, {}).values():
            record[:] = [factor * count for count in record]

    def add(self, player: str, member: str, outcome: str, games: float = 1.0) -> None:
        """Count a result of ``player``: ``win``, ``draw`` or ``loss``."""
        record = self._results.setdefault(player, {}).setdefault(member, [0.0, 0.0, 0.0])
        record[OUTCOMES.index(outcome)] += games

    def record(self, player: str, member: str) -> tuple[float, float, float]:
        """Decayed games won, drawn and lost."""
        won, drawn, lost = self._results.get(player, {}).get(member, (0.0, 0.0, 0.0))
        return won, drawn, lost

    def games(self, player: str, member: str) -> float:
        return sum(self.record(player, member))

    def win_rate(self, player: str, member: str) -> float:
        """Estimated share of games that ``player`` wins against ``member``; draws count half."""
        won, drawn, lost = self.record(player, member)
        return (won + (drawn + PRIOR_GAMES) / 2) / (won + drawn + lost + PRIOR_GAMES)

    def wins(self, players: Sequence[str]) -> np.ndarray:
        """Decayed wins of the row's player over the column's, ``[players, players]``; a draw is half a win for both."""
        index = {player: i for i, player in enumerate(players)}
        wins = np.zeros((len(index), len(index)))
        for player, row in self._results.items():
            for member, (won, drawn, lost) in row.items():
                wins[index[player], index[member]] += won + drawn / 2
                wins[index[member], index[player]] += lost + drawn / 2
        return wins

    def copy_row(self, player: str, member: str) -> None:
        """``member`` is a snapshot of ``player`` and has its results so far."""
        self._results[member] = {other: list(record) for other, record in self._results.get(player, {}).items()}

    def forget(self, member: str) -> None:
        self._results.pop(member, None)
        for row in self._results.values():
            row.pop(member, None)

    def state(self) -> dict[str, dict[str, list[float]]]:
        """JSON-ready: player -> member -> games won, drawn, lost."""
        return {
            player: {member: list(record) for member, record in row.items()} for player, row in self._results.items()
        }

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        self._results = {
            player: {member: [float(count) for count in record] for member, record in row.items()}
            for player, row in state.items()
        }
