"""Games that can be walked through exactly: immutable states, and the turn-based game that is a thin cover of one.

What is played and what is measured are the same states, so that an exact measure
(:mod:`rllib_lmgame.measures.exploitability`) is one of the game itself, and of the texts its players are shown.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from rllib_lmgame.base.text import shown
from rllib_lmgame.envs.contract.base import GameError, InvalidAction, read_word
from rllib_lmgame.envs.contract.turns import TextAECGame


class GameState(ABC):
    """A point of a game: chance is to decide, a player is to move, or it is over. Never changes.

    Seats are numbers, 0 to the number of players less one, in the order of the game's ``possible_agents``.
    """

    @property
    def chance(self) -> Sequence[tuple[float, GameState]]:
        """Pairs ``(probability, next state)`` where chance decides, their probabilities summing to 1; else empty."""
        return ()

    @property
    @abstractmethod
    def finished(self) -> bool:
        """The game is over."""

    @property
    @abstractmethod
    def seat(self) -> int:
        """Who is to move; of no meaning where nobody is."""

    @property
    @abstractmethod
    def actions(self) -> tuple[str, ...]:
        """What the player to move may reply; none where nobody is."""

    @abstractmethod
    def after(self, action: str) -> GameState:
        """The state that one of :attr:`actions` leads to."""

    @property
    @abstractmethod
    def payoffs(self) -> tuple[float, ...]:
        """Reward of every seat, once the game is over."""

    @abstractmethod
    def view(self, seat: int) -> str:
        """What ``seat`` sees. Two states that a player cannot tell apart, by what it has seen at its moves and what it
        has replied, belong to one information set.
        """


class TextTreeGame(TextAECGame):
    """A turn-based game that is played on a :class:`GameState`.

    A game derives from it and writes :meth:`first_state`, ``rules`` and :meth:`forfeit_results`. :attr:`position` is
    the present state.
    """

    position: GameState

    @abstractmethod
    def first_state(self) -> GameState:
        """Where the game begins at the present options, before anything is dealt; it depends on nothing else."""

    def start(self) -> None:
        self.position = settled(self.first_state(), self.random)

    def player_to_move(self) -> str:
        return self.possible_agents[self.position.seat]

    def view(self, agent: str) -> str:
        return self.position.view(self.seat_of(agent))

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return () if self.finished or agent != self.player_to_move() else self.position.actions

    @property
    def words(self) -> tuple[str, ...]:
        """All actions there are in the game, whether they are legal now or not; each is one word."""
        return self.position.actions

    def read_move(self, text: str) -> str:
        word = read_word(text, self.words, "action")
        if word not in self.position.actions:
            raise InvalidAction(f"{word} is not possible now, only {' or '.join(self.position.actions)}.")
        return word

    def play_move(self, agent: str, move: Any) -> None:
        self.position = settled(self.position.after(move), self.random)

    @property
    def finished(self) -> bool:
        return self.position.finished

    def results(self) -> dict[str, float]:
        return dict(zip(self.possible_agents, self.position.payoffs, strict=True))

    def seat_of(self, agent: str) -> int:
        """The number of a player's seat."""
        return self.possible_agents.index(agent)

    def shown(self, position: GameState, first: bool) -> str:
        """What :meth:`observe` gives the player to move at ``position``, if no reply was invalid.

        Args:
            position: A state in which somebody is to move.
            first: It is the player's first move of the game.
        """
        return self._composed(first, (position.view(position.seat),), position.actions)


def outcomes_of(state: GameState) -> list[tuple[float, GameState]]:
    """The pairs of :attr:`GameState.chance`. Raises: GameError: they are none, or no probabilities."""
    given = state.chance or ()
    try:
        pairs = [(p, after) for p, after in given if isinstance(after, GameState) and p >= 0]
        valid = len(pairs) == len(given) and (not pairs or math.isclose(sum(p for p, _ in pairs), 1, abs_tol=1e-6))
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise GameError(
            f"{type(state).__name__}.chance is {shown(given)}; it must be a list of pairs (probability, next state) "
            "whose probabilities sum to 1, empty where a player moves or the game is over"
        )
    return pairs


def settled(state: GameState, chance: random.Random) -> GameState:
    """The state with chance's decisions made, up to the next move of a player or the end."""
    while outcomes := outcomes_of(state):
        (state,) = chance.choices([after for _, after in outcomes], [p for p, _ in outcomes])
    return state
