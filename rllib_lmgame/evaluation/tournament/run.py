"""Plays a tournament: games side by side, each written down as it ends.

1. A failed game is written down with who failed, counts for nobody, and is played again on resuming.
2. A player that cannot be loaded is named before the first game, and before the directory is taken.
3. Scripted players follow from the seed alone. Local language models have seeds too, but their batch can change a
   probability's last digit: only one game at a time repeats bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.evaluation.recorded import RecordedGames, roles_of
from rllib_lmgame.evaluation.tournament.results import GameResult, TournamentDirectory, result_of
from rllib_lmgame.evaluation.tournament.schedule import schedule
from rllib_lmgame.rollouts.episode_log import episode_record
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment
from rllib_lmgame.rollouts.play import PlayedEpisode, Sessions
from rllib_lmgame.rollouts.players import Player
from rllib_lmgame.rollouts.records import GameConfig


@dataclass(frozen=True)
class Tournament:
    """What is to be played, ``at_once`` games at the same time; ``games_each`` as in :func:`~.schedule.schedule`.

    ``seed`` is of levels, seats and players; ``options`` limit an episode and one call into a game.
    """

    games: tuple[GameConfig, ...]
    players: Mapping[str, Player]
    games_each: int
    seed: int = 0
    at_once: int = 1
    options: TextRolloutOptions = field(default_factory=TextRolloutOptions)

    def settings(self) -> dict[str, Any]:
        """What makes it this tournament and no other, as plain data."""
        return {
            "games": {game.key: {"env": game.env, "env_config": game.env_config} for game in self.games},
            "players": {name: player.identity() for name, player in self.players.items()},
            "games_each": self.games_each,
            "seed": self.seed,
            "order": [[game.env for game in self.games], [*self.players]],  # It says who meets whom.
        }


@dataclass
class Outcome:
    """What was played, per game and also by earlier calls; ``failures`` (records) in this one."""

    results: tuple[list[GameResult], ...]
    failures: list[dict[str, Any]] = field(default_factory=list)
    planned: int = 0


async def play_tournament(
    tournament: Tournament,
    directory: TournamentDirectory | None = None,
    begun: Callable[[int, int], None] = lambda played, planned: None,
    ended: Callable[[], object] = lambda: None,
) -> Outcome:
    """Play what has not been played yet, and write it to ``directory``, which the caller holds.

    ``begun`` is called with the games played before and those planned, ``ended`` with every game that ends.

    Raises: ConfigError: a game or player cannot begin, or another tournament's directory; MissingDependencyError;
    OSError: a game could not be written.
    """
    async with AsyncExitStack() as stack:
        sessions = Sessions()
        stack.callback(sessions.close)
        limit_s = tournament.options.env_step_timeout_s
        tables = [list(await roles_of(game, limit_s, "GAME")) for game in tournament.games]
        assignments = {name: player.assignment for name, player in tournament.players.items()}
        plans = schedule(tables, assignments, tournament.games_each, tournament.seed)
        settings = {} if directory is None else tournament.settings()
        done = {} if directory is None else directory.played(settings)
        outcome = Outcome(tuple([] for _ in tournament.games), planned=len(plans))
        for plan in plans:
            if plan.episode_id in done:
                outcome.results[plan.game].append(done[plan.episode_id])
        left = {plan.episode_id: plan for plan in plans if plan.episode_id not in done}
        if left:
            for player in tournament.players.values():
                await stack.enter_async_context(player)
        if directory is not None:
            directory.begin(settings)
        begun(len(plans) - len(left), len(plans))

        def keep(key: str, played: PlayedEpisode) -> dict[str, Any]:
            record = episode_record(played)
            outcome.results[played.plan.game].append(result_of(record))
            return record

        def player_of(assignment: AgentAssignment, game: GameConfig) -> Player:
            return tournament.players[assignment.module_id]

        recorded = RecordedGames(directory, keep, ended)
        await recorded.play(left, tournament.games, player_of, sessions, tournament.options, tournament.at_once)
        outcome.failures = [*recorded.failures.values()]
        return outcome
