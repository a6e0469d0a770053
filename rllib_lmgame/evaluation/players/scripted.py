"""Players without a model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.evaluation.players.player import Player, PlayerSettings
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS, make_scripted_player
from rllib_lmgame.rollouts.game_calls import RaisedError, in_daemon_thread, told
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment
from rllib_lmgame.rollouts.seating import seat_seed
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, ScriptedSeat, Seat, scripted_move
from rllib_lmgame.text import in_words


class Scripted(Player):
    """A scripted player, new for every seat.

    Args:
        name, source: See :class:`~rllib_lmgame.evaluation.players.player.Player`; ``source`` is its name or import
            path, see :mod:`rllib_lmgame.policies.scripted`.
        settings: Its ``time_limit_s`` holds for a move of a player that is not part of this package.

    Raises:
        ConfigError: if there is no such player.
    """

    def __init__(self, name: str, source: str, settings: PlayerSettings) -> None:
        super().__init__(name, source)
        make_scripted_player(source, "--players")
        self._limit_s = None if source in SCRIPTED_PLAYERS else settings.time_limit_s

    @property
    def assignment(self) -> SeatAssignment:
        """See :class:`Player`."""
        return SeatAssignment(self.name, self.source)

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str) -> Seat:
        """See :class:`Player`."""
        player, seed = make_scripted_player(self.source, "--players"), seat_seed(plan, agent)
        if self._limit_s is None:
            return ScriptedSeat(agent, session.roles[agent], self.name, player=player, seed=seed)
        return WatchedSeat(agent, session.roles[agent], self.name, player=player, seed=seed, limit_s=self._limit_s)


@dataclass
class WatchedSeat(ScriptedSeat):
    """A scripted player's seat with a limit on the time of its moves, whoever made the game.

    Attributes:
        limit_s: Seconds.
    """

    limit_s: float = 0.0

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        who = type(self.player).__name__
        try:
            async with asyncio.timeout(self.limit_s) as limit:
                action, self.thought = await in_daemon_thread(
                    told, scripted_move, self.player, session, self.agent_id, observation, self.rng
                )
        except EpisodeFailed:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise EpisodeFailed(StopReason.TIMEOUT, f"{who} gave no move within {self.limit_s:g} s") from None
            words = str(error) if isinstance(error, RaisedError) else in_words(error)
            raise EpisodeFailed(StopReason.ENV_ERROR, f"{who}: {words}") from error
        return action
