"""Players without a model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS, ScriptedPlayer, make_scripted_player
from rllib_lmgame.rollouts.game_calls import RaisedError, in_daemon_thread, told
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.players.player import Player, seat_seed
from rllib_lmgame.rollouts.restarts import RecordedPlayer
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, Seat, scripted_move
from rllib_lmgame.text import in_words


class Scripted(Player):
    """A scripted player, made anew for every seat.

    Args:
        name, source: See :class:`Player`; ``source`` is a name or import path of :mod:`rllib_lmgame.policies.scripted`.
        limit_s: Of a move of a player that is not part of this package, whoever made the game; by default moves are
            limited as other calls into the game are.
        make: Makes the player, in place of what ``source`` says.
    """

    def __init__(
        self,
        name: str,
        source: str | None = None,
        *,
        limit_s: float | None = None,
        make: Callable[[], ScriptedPlayer] | None = None,
    ) -> None:
        super().__init__(name, source)
        self._limit_s = None if self.source in SCRIPTED_PLAYERS else limit_s
        self._make = make

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        """See :class:`Player`."""
        player = make_scripted_player(self.source) if self._make is None else self._make()
        if plan.beginning is not None:
            recorded = replace(plan, episode_id=plan.beginning.recording.episode_id)
            player = RecordedPlayer(player, plan.beginning, seat_seed(recorded, agent))
        return ScriptedSeat(agent, session.roles[agent], self.name, player=player, seed=seed, limit_s=self._limit_s)


@dataclass
class ScriptedSeat(Seat):
    """A scripted player's seat.

    Attributes:
        player: Who moves.
        seed: Of what it draws.
        limit_s: Of each of its moves, in seconds; ``None``: as of any call into the game.
    """

    player: ScriptedPlayer = None  # type: ignore[assignment]
    seed: int = 0
    limit_s: float | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        move = (scripted_move, self.player, session, self.agent_id, observation, self.rng)
        if self.limit_s is None:
            action, self.thought = await call("expert_action", *move)
            return action
        who = type(self.player).__name__
        try:
            async with asyncio.timeout(self.limit_s) as limit:
                action, self.thought = await in_daemon_thread(told, *move)
        except EpisodeFailed:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise EpisodeFailed(StopReason.TIMEOUT, f"{who} gave no move within {self.limit_s:g} s") from None
            words = str(error) if isinstance(error, RaisedError) else in_words(error)
            raise EpisodeFailed(StopReason.ENV_ERROR, f"{who}: {words}") from error
        return action
