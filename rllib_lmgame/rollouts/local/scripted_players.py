"""Scripted players at a game that is played without a cluster, and calls into that game."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.game_calls import GameCalls, run_to_end
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment
from rllib_lmgame.rollouts.seating import Seating, table_seed
from rllib_lmgame.rollouts.seats import Seat
from rllib_lmgame.time_limits import CALL_LIMIT_S

T = TypeVar("T")


def call_game(session: GameSession, what: str, function: Callable[..., T], *args: Any) -> T:
    """``function(*args)``, a call into the game of ``session``; ``what`` names it in messages.

    Raises:
        EpisodeFailed: if it fails, or takes longer than :data:`CALL_LIMIT_S` in a game that is not
            part of this package.
    """
    return run_to_end(GameCalls(session.game_id, session.trusted, CALL_LIMIT_S)(what, function, *args))


class ScriptedPlayers:
    """Takes seats in games for one kind of scripted player.

    Args:
        player: Name or import path, see :mod:`rllib_lmgame.policies.scripted`.

    Raises:
        ConfigError: if there is no such player.
    """

    def __init__(self, player: str) -> None:
        make_scripted_player(player, "against")
        self.player = player

    def seat(self, session: GameSession, agent: str, *, seed: int, policy: str | None = None) -> Seat:
        """A player of its own in ``agent``'s seat; there is no ``policy`` to choose."""
        plan = EpisodePlan(f"play-{seed}", 0, seed, "", 0, line_up={agent: SeatAssignment(self.player, self.player)})
        return Seating(seed=table_seed).seat(session, plan, agent)

    def act(self, seat: Seat, session: GameSession) -> str:
        """The action of ``seat`` for what it sees now.

        Raises:
            ConfigError: if the game lacks what the player needs (a solver, a list of legal actions).
            EpisodeFailed: if the player failed.
        """
        call = GameCalls(session.game_id, session.trusted, CALL_LIMIT_S)
        return run_to_end(seat.act(session, session.observe(seat.agent_id), call))
