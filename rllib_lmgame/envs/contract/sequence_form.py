"""A game walked through to its last end, in sequence form: what each player can know at its decisions, and what every
end pays.

The sequence form (B. von Stengel, Efficient Computation of Behavior Strategies, Games and Economic Behavior 14, 1996)
keeps for every end of the tree only the last own move of each seat. The moves before it follow from that one, since
players forget nothing. So expected values and best responses are a few sums over arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rllib_lmgame.envs.contract.functions import GameFunction, read_functions
from rllib_lmgame.envs.contract.tree import GameState, TextTreeGame, outcomes_of

MAX_STATES = 2_000_000
"""States of a game that is walked, unless more are allowed."""

START = -1
"""The sequence of a seat that has not moved yet."""


@dataclass(frozen=True)
class InformationSet:
    """A decision, as the player who takes it knows it.

    Attributes:
        agent_id: Whose decision it is.
        seat: The number of its seat.
        observations: Texts the player has been shown at its decisions so far, this one last.
        replies: What the player answered to all but the last of them.
        legal_actions: What it may answer now.
        instructions, functions: Rules of the game and what it lists as functions, as a session gives them.
        role: Kind of its seat; empty: as the agent is called.
    """

    agent_id: str
    seat: int
    observations: tuple[str, ...]
    replies: tuple[str, ...]
    legal_actions: tuple[str, ...]
    instructions: str = ""
    functions: tuple[GameFunction, ...] = ()
    role: str = ""

    @property
    def observation(self) -> str:
        """What the player sees now."""
        return self.observations[-1]


@dataclass(frozen=True)
class GameTree:
    """A game in sequence form. Moves are numbered through all information sets: ``starts[i]`` is the first of set i.

    Attributes:
        agents: Agent ids, by seat.
        information_sets: All decisions; one comes after those that lead to it.
        came_from: int64 ``[sets]``: the player's own move before, or :data:`START`.
        chance: float64 ``[ends]``: probability that chance lets a game end there, if all players want it.
        last_moves: int64 ``[ends, seats]``: each seat's last move before the end, or :data:`START`.
        payoffs: float64 ``[ends, seats]``.
        states: How many were walked through.
    """

    agents: tuple[str, ...]
    information_sets: tuple[InformationSet, ...]
    came_from: np.ndarray
    chance: np.ndarray
    last_moves: np.ndarray
    payoffs: np.ndarray
    states: int

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 ``[sets + 1]``: number of the first move of every information set, and how many moves there are."""
        return np.cumsum([0, *(len(s.legal_actions) for s in self.information_sets)])

    @cached_property
    def seats(self) -> np.ndarray:
        """int64 ``[sets]``: whose decision."""
        return np.array([s.seat for s in self.information_sets])

    @cached_property
    def depths(self) -> np.ndarray:
        """int64 ``[sets]``: own moves before."""
        return np.array([len(s.replies) for s in self.information_sets])


def walked(game: TextTreeGame, max_states: int = MAX_STATES) -> GameTree:
    """Walk through a game. Raises: ValueError: if it has more than ``max_states`` states."""
    walk = _Walk(game)
    path: list[tuple[GameState, float, tuple[int, ...]]] = [
        (game.first_state(), 1.0, (START,) * len(game.possible_agents))
    ]
    while path:
        if walk.states >= max_states:
            raise ValueError(f"{type(game).__name__} has more than {max_states:,} states at these options")
        path += reversed(walk.visit(*path.pop()))
    return walk.tree()


def sequence_probabilities(tree: GameTree, probabilities: np.ndarray) -> np.ndarray:
    """float64 ``[moves + 1]``: probability that a player makes a move and all its own moves before it; the last entry,
    ``[START]``, is that of who has not moved.

    Args:
        tree: The game.
        probabilities: float64 ``[moves]``, at their information sets.
    """
    sizes = np.diff(tree.starts)
    before, depth = np.repeat(tree.came_from, sizes), np.repeat(tree.depths, sizes)
    made = np.append(probabilities, 1.0)
    for level in range(1, int(depth.max()) + 1):
        moves = np.flatnonzero(depth == level)
        made[moves] *= made[before[moves]]
    return made


def backed_up(tree: GameTree, seat: int, weight: np.ndarray, worth: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """float64 ``[moves + 1]``: what each move of ``seat`` leads to, from its last decisions backwards; the first entry
    is that of who has not moved. Entries of the others' moves mean nothing.

    Args:
        tree: The game.
        seat: Whose moves.
        weight: float64 ``[ends]``: what an end counts.
        worth: What the information sets are worth, ``[sets]``, by what their moves lead to, ``[moves]``.
    """
    value = np.bincount(tree.last_moves[:, seat] - START, weight, int(tree.starts[-1]) + 1)
    own = tree.seats == seat
    for level in range(int(tree.depths.max()), -1, -1):
        sets = np.flatnonzero(own & (tree.depths == level))
        np.add.at(value, tree.came_from[sets] - START, worth(value[1:])[sets])
    return value


class _Walk:
    """What has been found so far."""

    def __init__(self, game: TextTreeGame) -> None:
        self.game = game
        listed = getattr(game, "functions", None)
        self.functions = () if listed is None else read_functions(listed())
        self.states = 0
        self.sets: list[InformationSet] = []
        self.came_from: list[int] = []
        self.numbers: dict[tuple[int, int, str], int] = {}
        """Seat, own last move and observation to the number of the information set."""
        self.first_moves: list[int] = [0]
        self.set_of_move: list[int] = []
        self.ends: list[tuple[float, tuple[int, ...], tuple[float, ...]]] = []

    def visit(
        self, state: GameState, chance: float, last: tuple[int, ...]
    ) -> list[tuple[GameState, float, tuple[int, ...]]]:
        """Note a state; what comes after it.

        Args:
            state: The state.
            chance: Probability of chance's decisions on the way.
            last: Last move of every seat.
        """
        self.states += 1
        if outcomes := outcomes_of(state):
            return [(after, chance * p, last) for p, after in outcomes if p > 0]
        if state.finished:
            self.ends.append((chance, last, state.payoffs))
            return []
        seat = state.seat
        first = self.first_moves[self._set(state, seat, last[seat])]
        return [
            (state.after(action), chance, (*last[:seat], first + n, *last[seat + 1 :]))
            for n, action in enumerate(state.actions)
        ]

    def _set(self, state: GameState, seat: int, came_from: int) -> int:
        """Number of the information set of ``state``."""
        text = self.game.shown(state, first=came_from == START)
        number = self.numbers.setdefault((seat, came_from, text), len(self.sets))
        if number < len(self.sets):
            if self.sets[number].legal_actions != state.actions:
                raise ValueError(f"{type(self.game).__name__} allows different actions where a player sees {text!r}")
            return number
        observations: tuple[str, ...] = ()
        replies: tuple[str, ...] = ()
        if came_from != START:
            before = self.sets[self.set_of_move[came_from]]
            action = before.legal_actions[came_from - self.first_moves[self.set_of_move[came_from]]]
            observations, replies = before.observations, (*before.replies, action)
        self.sets.append(
            InformationSet(
                agent := self.game.possible_agents[seat],
                seat,
                (*observations, text),
                replies,
                state.actions,
                self.game.instructions,
                self.functions,
                self.game.roles[agent],
            )
        )
        self.came_from.append(came_from)
        self.set_of_move += [number] * len(state.actions)
        self.first_moves.append(len(self.set_of_move))
        return number

    def tree(self) -> GameTree:
        chance, last, payoffs = zip(*self.ends, strict=True)
        return GameTree(
            tuple(self.game.possible_agents),
            tuple(self.sets),
            np.array(self.came_from, np.int64),
            np.array(chance),
            np.array(last, np.int64),
            np.array(payoffs),
            self.states,
        )
