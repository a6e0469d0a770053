"""FrozenLake: cross the ice to the goal without falling into a hole."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import ClassVar

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant

GOAL_REWARD = 1.0
MAX_MAPS_TRIED = 10_000
MAX_PLANNED = 4
"""Moves the expert plans for one reply on slippery ice: it looks at all series of them."""

STEPS = {"Up": (-1, 0), "Right": (0, 1), "Down": (1, 0), "Left": (0, -1)}
"""Moves in the order of the compass: the neighbours of a move in this circle are where slipping leads."""

TURNS = (-1, 0, 1)
"""Where a move may go on slippery ice, in steps of this circle."""

RULES = """You cross a frozen lake. Reach the goal; do not step into a hole.
P player, _ ice, O hole, G goal, X player in a hole, √ player on the goal.
Moves: Up, Down, Left, Right. {moves}
There are {turns} turns{total}. Reaching the goal gives 1.{slippery}"""
SLIPPERY = (
    "\nThe ice is slippery: with a probability of {:.2g} you go where you want, else to one side or the other of it."
)


class FrozenLakeOptions(TextGameOptions):
    """``env_config`` of FrozenLake."""

    max_turns: int = option(10, "Replies per episode.", ge=1)
    max_actions_per_turn: int = option(5, "Moves per reply, joined by `||`; what goes beyond is not played.", ge=1)
    max_actions: int | None = option(20, "Moves per episode; null is no limit.", ge=1)
    size: int = option(4, "Rows and columns of the lake.", ge=2, le=10)
    frozen_probability: float = option(0.8, "Probability that a cell is ice and not a hole.", gt=0, le=1)
    random_ends: bool = option(False, "Draw the cells of start and goal too, instead of taking two corners.")
    is_slippery: bool = option(False, "A move may go to one side or the other of where it should.")
    success_rate: float = option(
        1 / 3, "Probability that a move on slippery ice goes where it should; both sides share the rest.", ge=0, le=1
    )


class FrozenLake(TextGame):
    """Walk over the ice to the goal, around the holes.

    Observation: the rows of the lake, ``P`` player, ``_`` ice, ``O`` hole, ``G`` goal, ``X`` player in a hole, ``√``
        player on the goal.
    Action: ``Up``, ``Down``, ``Left`` or ``Right``, several joined by ``||``. Walking against the border is accepted
        and changes nothing.
    Reward: 1 at the goal, else 0; -0.1 for a reply that cannot be read. Falling into a hole ends the episode without
        success.
    Horizon: 10 replies of up to 5 moves, 20 moves in all. Rules and the map generator are Gymnasium's (``toy_text``);
        symbols and budgets follow GRL. With ``is_slippery`` a move goes one time in three each where it should, or to
        either side; ``success_rate`` is Gymnasium's.
    Levels: from the top left corner to the bottom right one. The lakes of SCOUT (arXiv 2601.21754) are ``random_ends:
        true, frozen_probability: 0.9, max_turns: 25, max_actions_per_turn: 1, max_actions: null``, its slippery ones
        also ``is_slippery: true, success_rate: 0.8``.
    Solver: breadth-first, fewest moves. On slippery ice backward induction over the replies left, the moves left being
        spread evenly over them: the series of moves that most probably ends at the goal.
    Measures: on slippery ice, with one move per reply, ``best_success``: the probability with which the best policy
        there is crosses the lake. Its mean is the most that ``success_rate`` can be expected to reach.
    """

    variants = (
        Variant("lmgame/FrozenLake-v0", (-0.7, 1.0), "Cross a 4x4 lake around the holes."),
        Variant("lmgame/FrozenLakeSlippery-v0", (-0.7, 1.0), "FrozenLake on slippery ice.", {"is_slippery": True}),
    )
    Options: ClassVar[type[TextGameOptions]] = FrozenLakeOptions
    options: FrozenLakeOptions

    @property
    def rules(self) -> str:
        chosen = self.options
        slippery = SLIPPERY.format(chosen.success_rate) if chosen.is_slippery else ""
        return RULES.format(
            moves=self.moves_rule(("Right", "Down")), turns=chosen.max_turns, total=self.total_rule(), slippery=slippery
        )

    @property
    def success(self) -> bool:
        return self._cell(self._place) == "G"

    @property
    def finished(self) -> bool:
        return self._cell(self._place) in "GH"

    def levels(self, rng: random.Random) -> Iterator[tuple[str, ...]]:
        chosen = self.options
        budget = self.moves_in_all
        if not chosen.random_ends and 2 * (chosen.size - 1) > budget:
            raise ConfigError(
                "env_config.max_actions",
                f"no lake of size {chosen.size} can be crossed in {budget} moves; raise max_actions",
            )
        failed, crossed = 0, True
        while failed < MAX_MAPS_TRIED:
            if crossed:  # Gymnasium's generator draws on from one seed until there is a way.
                chance, _ = seeding.np_random(rng.getrandbits(31))
            rows = random_map(chance, chosen.size, chosen.frozen_probability, chosen.random_ends)
            path = shortest_path(rows, start_of(rows))
            crossed = path is not None
            failed += 1
            if path is not None and len(path) <= budget:
                failed = 0
                yield rows
        raise ConfigError(
            "env_config.frozen_probability",
            f"no lake of size {chosen.size} was found with a way of {budget} moves; raise it, or max_actions",
        )

    def level_key(self, level: tuple[str, ...]) -> str:
        return "frozen_lake " + "/".join(level)

    def start(self, level: tuple[str, ...]) -> None:
        self._rows = level
        self._place = start_of(level)

    def board(self) -> str:
        row, column = self._place
        symbols = str.maketrans("SFH", "__O")
        lines = [line.translate(symbols) for line in self._rows]
        player = {"G": "√", "H": "X"}.get(self._cell(self._place), "P")
        lines[row] = lines[row][:column] + player + lines[row][column + 1 :]
        return "\n".join(lines)

    def legal_actions(self) -> tuple[str, ...]:
        if self.options.is_slippery:
            return tuple(STEPS)
        return tuple(name for name, step in STEPS.items() if moved(self._place, step, len(self._rows)) != self._place)

    def read_move(self, text: str) -> str:
        name = text.rstrip(".").capitalize()
        if name not in STEPS:
            raise InvalidAction("each move must be Up, Down, Left or Right; several are joined by ||.")
        return name

    def play_move(self, name: str) -> float:
        names, chosen, turn = list(STEPS), self.options, 0
        if chosen.is_slippery:
            turn = self.random.choices(TURNS, turn_chances(chosen.success_rate))[0]
        self._place = moved(self._place, STEPS[names[(names.index(name) + turn) % 4]], len(self._rows))
        return GOAL_REWARD if self.success else 0.0

    @property
    def solver_wins(self) -> bool:
        return not self.options.is_slippery

    def solve(self) -> list[str] | None:
        if not self.options.is_slippery:
            return shortest_path(self._rows, self._place)
        return self._plan(self._place, self._turns_left(), self._moves_left())[0]

    def measures(self) -> Mapping[str, float]:
        chosen = self.options
        if not chosen.is_slippery or chosen.max_actions_per_turn > 1:
            return {}
        return {"best_success": self._plan(start_of(self._rows), chosen.max_turns, self.moves_in_all)[1]}

    def _plan(self, place: tuple[int, int], replies: int, moves: int) -> tuple[list[str], float]:
        chosen = self.options
        return likeliest_moves(self._rows, place, replies, moves, chosen.max_actions_per_turn, chosen.success_rate)

    def _cell(self, place: tuple[int, int]) -> str:
        return self._rows[place[0]][place[1]]


def moved(place: tuple[int, int], step: tuple[int, int], size: int) -> tuple[int, int]:
    """The cell one step on, or the same one at the border."""
    row, column = place[0] + step[0], place[1] + step[1]
    return (row, column) if 0 <= row < size and 0 <= column < size else place


def random_map(chance: np.random.Generator, size: int, frozen: float, random_ends: bool = False) -> tuple[str, ...]:
    """One draw of Gymnasium's map generator (``toy_text.frozen_lake``), whether the lake can be crossed or not; with
    ``random_ends`` from any cell to any other one.
    """
    cells = chance.choice(["F", "H"], (size, size), p=[frozen, 1 - frozen])
    start, goal = chance.choice(size * size, 2, replace=False) if random_ends else (0, -1)
    cells.flat[start], cells.flat[goal] = "S", "G"
    return tuple("".join(row) for row in cells)


def start_of(rows: tuple[str, ...]) -> tuple[int, int]:
    """The cell to start from."""
    return divmod("".join(rows).index("S"), len(rows))


def turn_chances(success_rate: float) -> tuple[float, float, float]:
    """Probabilities of :data:`TURNS` on slippery ice."""
    return (1 - success_rate) / 2, success_rate, (1 - success_rate) / 2


@lru_cache(maxsize=64)
def slips(rows: tuple[str, ...], success_rate: float) -> NDArray[np.float64]:
    """Probability of each cell after a move on slippery ice, ``[moves, cells, cells]``; holes and the
    goal are never left.
    """
    size = len(rows)
    steps = list(STEPS.values())
    chances = np.zeros((len(steps), size * size, size * size))
    for cell in range(size * size):
        row, column = divmod(cell, size)
        for move in range(len(steps)):
            for turn, chance in zip(TURNS, turn_chances(success_rate), strict=True):
                ahead = (
                    (row, column)
                    if rows[row][column] in "GH"
                    else moved((row, column), steps[(move + turn) % len(steps)], size)
                )
                chances[move, cell, ahead[0] * size + ahead[1]] += chance
    return chances


def likeliest_moves(
    rows: tuple[str, ...], place: tuple[int, int], replies: int, moves: int, per_reply: int, success_rate: float
) -> tuple[list[str], float]:
    """The moves of the next reply with which slippery ice is most probably crossed, and that probability. With one move
    per reply this is value iteration over a finite horizon, so no policy does better.

    Args:
        rows: The lake.
        place: Where the player is.
        replies: Replies left.
        moves: Moves left; they are spread evenly over the replies.
        per_reply: Moves a reply may hold.
        success_rate: Probability that a move goes where it should.
    """
    planned = []
    for left in range(replies, 0, -1):
        planned.append(min(-(-moves // left), per_reply, MAX_PLANNED))
        moves -= planned[-1]
    chances, size = slips(rows, success_rate), len(rows)
    reached = np.zeros(size * size)
    reached["".join(rows).index("G")] = 1.0
    for count in reversed(planned):
        series = reached[None]  # [series of moves, cells]: the first move varies slowest
        for _ in range(count):
            series = np.einsum("mij,sj->msi", chances, series).reshape(-1, size * size)
        reached = series.max(axis=0)
    cell = place[0] * size + place[1]
    best = int(series[:, cell].argmax())
    names = [list(STEPS)[best // len(STEPS) ** (count - 1 - i) % len(STEPS)] for i in range(count)]
    return names, float(series[best, cell])


def shortest_path(rows: tuple[str, ...], start: tuple[int, int]) -> list[str] | None:
    """Fewest moves over the ice from ``start`` to the goal, or ``None`` if there is no way."""
    queue = deque([start])
    paths: dict[tuple[int, int], list[str]] = {start: []}
    while queue:
        place = queue.popleft()
        if rows[place[0]][place[1]] == "G":
            return paths[place]
        for name, step in STEPS.items():
            ahead = moved(place, step, len(rows))
            if ahead not in paths and rows[ahead[0]][ahead[1]] != "H":
                paths[ahead] = [*paths[place], name]
                queue.append(ahead)
    return None
