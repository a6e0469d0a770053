"""Who takes seats: one shape for training, measures, tournaments and the terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment, stable_seed
from rllib_lmgame.rollouts.seats import EpisodeFailed, Seat


class Player(ABC):
    """A player under a name, who takes seats in any number of games at once. An asynchronous context: what is loaded
    when it is entered is freed when it is left, in the same event loop.

    Args:
        name: What it is called in line-ups, tables and logs.
        source: What the user wrote; by default the name.
    """

    def __init__(self, name: str, source: str | None = None) -> None:
        self.name = name
        self.source = name if source is None else source

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:  # noqa: B027
        """Free what was loaded."""

    @property
    def assignment(self) -> SeatAssignment:
        """How it stands in line-ups."""
        return SeatAssignment(self.name, self.source)

    @abstractmethod
    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        """Take ``agent``'s seat in one game; ``seed`` is that of what the player draws there."""

    def identity(self) -> dict[str, Any]:
        """What tells it from another player, as plain data: the same as long as it is the same player."""
        return {"player": self.source}

    def counts(self) -> dict[str, int]:
        """What was spent on it: requests, tokens, failures; nothing for players that cost nothing."""
        return {}


def seat_seed(plan: EpisodePlan, agent: str) -> int:
    """Seed of what a player draws in one episode: another one when the episode is played again."""
    return stable_seed(plan.seed, plan.episode_id, agent, "player")


def take_seats(
    session: GameSession,
    plan: EpisodePlan,
    player_of: Callable[[SeatAssignment], Player],
    seed: Callable[[EpisodePlan, str], int] = seat_seed,
) -> dict[str, Seat]:
    """Everybody's seat in one game.

    Args:
        session: The game.
        plan: Its line-up says who sits where.
        player_of: The player of an assignment.
        seed: Of what a player draws.

    Raises:
        EpisodeFailed: if the game has other seats than the line-up.
    """
    if set(plan.line_up) != set(session.agent_ids):
        there, planned = (", ".join(agents) or "none" for agents in (session.agent_ids, plan.line_up))
        raise EpisodeFailed(
            StopReason.ENV_ERROR,
            f"{session.game_id} has the seats {there}; the line-up of the episode is for {planned}",
        )
    return {
        agent: player_of(plan.line_up[agent]).seat(session, plan, agent, seed(plan, agent))
        for agent in session.agent_ids
    }
