"""One interface to a game in play, whatever kind of environment it is.

A Gymnasium game, a PettingZoo AEC game and a PettingZoo parallel game look the same to the code that plays them. It
asks who is to act, shows each of them its observation, and hands in their texts.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rllib_lmgame.endpoints.completions import ChatReply, ChatRequest, RequestError
from rllib_lmgame.envs.contract.functions import GameFunction


@dataclass(frozen=True)
class Observation:
    """What one agent sees before it acts.

    Attributes:
        text: Observation of the game.
        legal_actions: Texts of the legal actions where the game can list them, else empty.
        turns_left: Replies the agent may still give, or ``None`` if there is no limit.
        refusal: What was wrong with its last reply, where the text begins with that; empty if nothing was.
    """

    text: str
    legal_actions: tuple[str, ...] = ()
    turns_left: int | None = None
    refusal: str = ""


@dataclass(frozen=True)
class StepResult:
    """What one step did.

    Attributes:
        rewards: Reward per agent since the last step, for every agent that received one (missing is 0).
        terminated: The game ended by its own rules.
        truncated: The game was cut short by a budget. Never true together with ``terminated``.
        infos: Per agent: ``invalid_action`` (bool), and at the end of its game ``success`` (bool) and whatever the game
            reports.
        ends: Per agent whose game is over, though that of others may go on: true if it ended by its own rules, false if
            it was cut short. An agent that is not named shares the end of the game.
    """

    rewards: Mapping[str, float]
    terminated: bool
    truncated: bool
    infos: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ends: Mapping[str, bool] = field(default_factory=dict)

    def end_of(self, agent_id: str) -> bool | None:
        """Whether the agent's game ended by its own rules (true) or was cut short (false); ``None`` if it goes on."""
        return self.ends.get(agent_id, self.terminated if self.done else None)

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class AskingProgram(Protocol):
    """A program that asks for completions, whose messages are its own."""

    request: ChatRequest | None
    """What it asks for now; ``None`` when it has ended."""

    def deliver(self, reply: ChatReply) -> bool:
        """Hand in the reply before its step; ``False``: who asked had gone, and ``request`` is the next one."""

    def refuse(self, error: RequestError) -> None:
        """Answer with an error, and wait for what it asks next."""


class GameSession(ABC):
    """A game in play. Not thread-safe; one session per coroutine."""

    game_id: str
    agent_ids: tuple[str, ...]
    roles: Mapping[str, str]
    """Kind of seat of every agent, in the order of ``agent_ids``."""
    instructions: str
    """Rules of the game, for the system prompt."""
    cooperative: bool = False
    """Of a game for several players: they reach the goal together or not at all, so that nobody wins against
    another.
    """
    secret_seats: bool = False
    """Nobody at the table may be told who sits where, or what others reply but through observations."""
    functions: tuple[GameFunction, ...] = ()
    """Actions that a model may call as functions (`reply_format: function_calling`), beside any action as text."""
    program: AskingProgram | None = None
    """Who asks for replies, where observations are the requests of a program."""
    trusted: bool = False
    """The game is part of this package and its calls are short, so they need no watch."""

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Start the level of ``seed``; the same level in every process."""

    @abstractmethod
    def to_act(self) -> tuple[str, ...]:
        """Agents that must act now: one in turn-based games, all in simultaneous ones, none when it is over."""

    @abstractmethod
    def observe(self, agent_id: str) -> Observation:
        """What ``agent_id`` sees now (also at the end of the game)."""

    @abstractmethod
    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Hand in the text of every agent in :meth:`to_act`. Any text is allowed."""

    @abstractmethod
    def expert_action(self, agent_id: str) -> str | None:
        """What the game's own solver would type now, or ``None`` if it has no solver."""

    def level(self) -> str | None:
        """What tells this level from others; ``None`` if the game does not say, or has no levels."""
        return None

    def expert_thought(self, agent_id: str) -> str | None:
        """The reasoning that leads to :meth:`expert_action`, if the game can tell it."""
        return None

    def random_action(self, agent_id: str, rng: random.Random) -> str | None:
        """A text of the action space, for a game that lists no legal actions; ``None`` where a random
        text says nothing.
        """
        return None

    def pass_action(self, agent_id: str) -> str | None:
        """What is handed in for ``agent_id``, who is to act but can write no more, while the others play on; ``None``
        if the game says nothing.
        """
        return None

    def forfeit(self, agent_id: str) -> StepResult | None:
        """Give up the game for ``agent_id``, who is to act but can write no more; ``None`` if the
        game knows no forfeit.
        """
        return None

    def close(self) -> None:  # noqa: B027
        """Free what the game holds."""
