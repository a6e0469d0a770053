"""Scripted players at a table with a person or a checkpoint: no engine, no cluster."""

from __future__ import annotations

import asyncio

from rllib_lmgame.envs.limits import CALL_LIMIT_S
from rllib_lmgame.envs.session import GameSession
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.game_calls import GameCalls
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.seats import ScriptedSeat, Seat


class ScriptedPlayers:
    """Takes seats in games for one kind of scripted player.

    Args:
        player: Name or import path, see :mod:`rllib_lmgame.policies.scripted`.

    Raises:
        ConfigError: if there is no such player.
    """

    def __init__(self, player: str) -> None:
        make_scripted_player(player)
        self.player = player

    def seat(self, session: GameSession, agent: str, *, seed: int, policy: str | None = None) -> Seat:
        """A player of its own in ``agent``'s seat; there is no ``policy`` to choose."""
        own_seed = stable_seed(seed, agent, "player")
        return ScriptedSeat(agent, session.roles[agent], self.player, player=make_scripted_player(self.player), seed=own_seed)

    def act(self, seat: Seat, session: GameSession) -> str:
        """The action of ``seat`` for what it sees now.

        Raises:
            ConfigError: if the game lacks what the player needs (a solver, a list of legal actions).
            EpisodeFailed: if the player failed.
        """
        call = GameCalls(session.game_id, session.trusted, CALL_LIMIT_S)
        return asyncio.run(seat.act(session, session.observe(seat.agent_id), call))
