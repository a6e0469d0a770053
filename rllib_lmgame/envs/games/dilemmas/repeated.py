"""A game of rounds: everybody decides at once, the round pays, and before each round all may talk."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import TextParallelGame, TextParallelOptions, quoted

LONGEST_MESSAGE = 500
"""Characters: those of all others in a large group must fit into an observation."""


TOLERANCE = 1e-9
"""Sums of pay-offs are compared with this slack."""


class RepeatedOptions(TextParallelOptions):
    """``env_config`` keys of every game of rounds."""

    rounds: int = option(10, "Rounds with pay-offs.", ge=1, le=10_000)
    chat_turns: int = option(0, "Messages everybody writes before each round, all at once.", ge=0, le=20)
    chat_length: int = option(200, "Characters of a message that the others see.", ge=1, le=LONGEST_MESSAGE)
    max_turns: int | None = option(
        None, "Replies per player, messages included, after which the game is cut short; null: it is never.", ge=1
    )


class RepeatedGame(TextParallelGame):
    """A game for two and more that is played in rounds.

    A game derives from it, sets ``Options``, ``metadata`` and ``seats`` and writes the abstract methods. The talk
    before a round is simultaneous as well: nobody sees the others' messages before having written its own. Messages
    are shown through :func:`~rllib_lmgame.envs.contract.quoted`, each on one line and cut to ``chat_length``, so that
    no talk, however long, pushes the question out of an observation.
    """

    Options: ClassVar[type[TextParallelOptions]] = RepeatedOptions
    options: RepeatedOptions

    def reached(self, agent: str, fair: float) -> bool:
        """Whether ``agent`` has got at least ``fair`` points a round."""
        return bool(self.played) and self.points[agent] >= fair * len(self.played) - TOLERANCE

    @property
    def point_value(self) -> float:
        """Reward of a point."""
        return 1.0

    @property
    @abstractmethod
    def stakes(self) -> str:
        """What the players decide and what it pays, in words."""

    @abstractmethod
    def choices(self, agent: str) -> tuple[str, ...]:
        """What ``agent`` may decide."""

    @abstractmethod
    def read_choice(self, agent: str, text: str) -> Any:
        """The decision that ``text`` says.

        Raises: InvalidAction: if it says none, several, or one that is not allowed.
        """

    @abstractmethod
    def default_choice(self, agent: str) -> Any:
        """What is played for ``agent`` in a round in which its reply is invalid."""

    @abstractmethod
    def pay(self, choices: Mapping[str, Any]) -> Mapping[str, float]:
        """Points that the round pays everybody in play."""

    @abstractmethod
    def told(self, agent: str, choices: Mapping[str, Any], paid: Mapping[str, float]) -> str:
        """What ``agent`` hears of a round, in a line."""

    @property
    def rules(self) -> str:
        options = self.options
        rounds = "The game has one round" if options.rounds == 1 else f"The game has {options.rounds} rounds"
        lines = [self.stakes, f"{rounds}; everybody decides at the same time."]
        if options.chat_turns:
            many = "a message" if options.chat_turns == 1 else f"{options.chat_turns} messages, one after the other"
            lines.append(
                f"Before each round everybody writes {many}, all at the same time; the others see up to "
                f"{options.chat_length} characters of each. What is said binds nobody."
            )
        return "\n".join(lines)

    def turn_limit(self) -> int | None:
        """Messages and decisions of all rounds, or ``max_turns`` if that is less."""
        needed = self.options.rounds * (1 + self.options.chat_turns)
        return needed if self.options.max_turns is None else min(needed, self.options.max_turns)

    def start(self) -> None:
        self.played: list[dict[str, Any]] = []
        """Everybody's decisions, round by round."""
        self.points = dict.fromkeys(self.possible_agents, 0.0)
        """Sum of the pay-offs of the rounds that were played."""
        self._messages_left = self.options.chat_turns

    @property
    def talking(self) -> bool:
        """The next replies are messages."""
        return self._messages_left > 0 and not self.finished

    @property
    def rounds_left(self) -> int:
        """Rounds that have not been played."""
        return self.options.rounds - len(self.played)

    @property
    def finished(self) -> bool:
        return self.rounds_left == 0

    def view(self, agent: str) -> str:
        if self.finished or agent not in self.agents:
            return f"The game is over. {self._points(agent)}"
        asked = f"Write a message to {self._others(agent)}." if self.talking else self.question(agent)
        turn = f"Round {len(self.played) + 1} of {self.options.rounds}. {self._points(agent)} {asked}"
        return f"You are {agent}. {turn}"

    def question(self, agent: str) -> str:
        """What ``agent`` is asked in a round."""
        return "Your choice?"

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return () if self.finished or self.talking or agent not in self.agents else self.choices(agent)

    def random_action(self, agent: str, rng: random.Random) -> str | None:
        """Where all talk, one of the things that may be decided, whatever is decided then."""
        return rng.choice(self.choices(agent)) if self.talking else None

    def read_move(self, agent: str, text: str) -> Any:
        return " ".join(text.split())[: self.options.chat_length] if self.talking else self.read_choice(agent, text)

    def default_move(self, agent: str) -> Any:
        return "" if self.talking else self.default_choice(agent)

    def play_round(self, moves: Mapping[str, Any]) -> Mapping[str, float]:
        if self.talking:
            self._talk(moves)
            return {}
        paid = self.pay(moves)
        self.played.append(dict(moves))
        self._messages_left = self.options.chat_turns
        for agent, points in paid.items():
            self.points[agent] += points
        for agent in moves:
            self.tell(agent, f"Round {len(self.played)}: {self.told(agent, moves, paid)}")
        return {agent: points * self.point_value for agent, points in paid.items()}

    def _talk(self, messages: Mapping[str, str]) -> None:
        self._messages_left -= 1
        for agent in messages:
            for other, said in messages.items():
                if other != agent:
                    self.tell(agent, quoted(other, said))

    def _points(self, agent: str) -> str:
        others = ", ".join(f"{other}: {self.points[other]:g}" for other in self.possible_agents if other != agent)
        return f"Points so far: you {self.points[agent]:g}, {others}."

    def _others(self, agent: str) -> str:
        others = [other for other in self.agents if other != agent]
        return others[0] if len(others) == 1 else "the others"
