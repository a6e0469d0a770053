"""Who plays outside of a training run: in tournaments and at the table of ``rllib play``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment
from rllib_lmgame.rollouts.seats import Seat
from rllib_lmgame.time_limits import CALL_LIMIT_S


@dataclass(frozen=True)
class PlayerSettings:
    """What all players of a command share.

    Attributes:
        temperature: Sampling temperature of language models, 0 is greedy; ``None``: that of training, or 1.
        seed: Of what engines draw beside the games' own seeds.
        at_once: Games a player is in at the same time, at most.
        time_limit_s: Of one move of a player that is not part of this package, and of one request to an endpoint.
        trust: Take from checkpoints what could run code, whoever wrote them.
        games: Games the user named instead of those of a checkpoint.
        sections: The sections ``language_model``, ``inference``, ``text_rollouts`` and ``endpoint`` of models that have
            no run: as in an experiment's file.
    """

    temperature: float | None = None
    seed: int = 0
    at_once: int = 1
    time_limit_s: float = CALL_LIMIT_S
    trust: bool = False
    games: tuple[str, ...] = ()
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Player(ABC):
    """A player under a name, who takes seats in any number of games at once. An asynchronous context: what is loaded
    when it is entered is freed when it is left, in the same event loop.

    Args:
        name: What it is called in line-ups, tables and logs.
        source: What the user wrote.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:  # noqa: B027
        """Free what was loaded."""

    @property
    @abstractmethod
    def assignment(self) -> SeatAssignment:
        """How it stands in line-ups."""

    @abstractmethod
    def seat(self, session: GameSession, plan: EpisodePlan, agent: str) -> Seat:
        """Take ``agent``'s seat in one game; the plan's line-up has :attr:`assignment` for it."""

    def identity(self) -> dict[str, Any]:
        """What tells it from another player, as plain data: the same as long as it is the same player."""
        return {"player": self.source}

    def counts(self) -> dict[str, int]:
        """What was spent on it: requests, tokens, failures; nothing for players that cost nothing."""
        return {}
