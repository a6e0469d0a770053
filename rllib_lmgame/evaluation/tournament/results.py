"""What a game of a tournament came to, as its record in the episode log says, and the directory of those records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.envs.contract.verdicts import Outcome
from rllib_lmgame.evaluation.recorded import RecordDirectory, difference, plain
from rllib_lmgame.measures.ratings import Comparison
from rllib_lmgame.rollouts.episodes import level_in

SCORES: Mapping[str, float] = {Outcome.WIN: 1.0, Outcome.DRAW: 0.5, Outcome.LOSS: 0.0}


@dataclass(frozen=True)
class SeatResult:
    """One seat's result; ``payoff`` is what the game calls the player's result, else its return."""

    agent_id: str
    player: str
    payoff: float
    outcome: str | None
    success: bool | None


@dataclass(frozen=True)
class GameResult:
    """One game's result; ``seed`` and ``level`` (a digest) where the record has them."""

    episode_id: str
    game: str
    seats: tuple[SeatResult, ...]
    seed: int | None = None
    level: str | None = None

    @property
    def played_on(self) -> str:
        """What results on one level share: its digest or seed; without a seed each game is alone."""
        return f"{self.game} {self.level or (self.episode_id if self.seed is None else self.seed)}"

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Pairs of players: a winner has beaten who lost or drew, a draw has beaten who lost; equals say nothing."""
        found = []
        for i, first in enumerate(self.seats):
            for second in self.seats[i + 1 :]:
                score = _score(first.outcome, second.outcome)
                if score is not None and first.player != second.player:
                    found.append((first.player, second.player, score))
        return tuple(found)


def _score(first: str | None, second: str | None) -> float | None:
    if first is None or second is None:
        return None
    if first == second:
        return SCORES[first] if first == Outcome.DRAW else None
    return float(SCORES[first] > SCORES[second])


def result_of(record: Mapping[str, Any]) -> GameResult:
    """The result in a record of the episode log. Raises: KeyError, TypeError, ValueError, AttributeError if not."""
    infos, assignments, trajectories = record["infos"], record["assignments"], record["trajectories"]
    payoffs = payoffs_of(record)
    seats = tuple(
        SeatResult(
            agent_id=seat["agent_id"],
            player=str(assignments[seat["agent_id"]]["module_id"]),
            payoff=float(payoffs[seat["agent_id"]]),
            outcome=seat["outcome"],
            success=seat["success"],
        )
        for seat in trajectories
    )
    level = level_in((infos, *(step.get("infos", {}) for step in record.get("steps", ()))))
    return GameResult(str(record["episode_id"]), str(record["game"]), seats, record.get("seed"), level)


def payoffs_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What each agent of a record got: its result, without penalties, where the game names all; else its return."""
    infos, returns = record.get("infos", {}), {each["agent_id"]: each["return"] for each in record["trajectories"]}
    named = {agent: info["result"] for agent, info in infos.items() if isinstance(info.get("result"), int | float)}
    return named if named.keys() >= returns.keys() else returns


class TournamentDirectory(RecordDirectory):
    """It belongs to one tournament: other players, games, options or orders are refused."""

    what = "tournament"
    settings_file = "tournament.json"
    records_file = "games.jsonl"

    def played(self, settings: Mapping[str, Any]) -> dict[str, GameResult]:
        """Games already played of the tournament with these settings, by episode id.

        Raises: ConfigError: if the directory holds another tournament, or something else.
        """
        there = self.settings()
        if there is None:
            return {}
        different = difference(there, plain(settings))
        self.refuse(different and re.sub(r"^games_each\b", "--games", different))
        return {result.episode_id: result for result in self.results(result_of)}
