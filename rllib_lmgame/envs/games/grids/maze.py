"""Maze: find the way to the goal, seeing coordinates or only the walls around."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, NamedTuple

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.contract.splits import level_digest, split_few

Place = tuple[int, int]
"""Row and column, from 0 at the top left."""

STEP_REWARD, GOAL_REWARD = -1.0, 0.0
UNKNOWN_ACTION_REWARD = -4.0
MAX_MAZES_TRIED = 1_000
STEPS = {"move up": (-1, 0), "move down": (1, 0), "move left": (0, -1), "move right": (0, 1)}
SIDES = {"to your right": (0, 1), "to your left": (0, -1), "above you": (-1, 0), "below you": (1, 0)}
"""Where a wall can be, in the order in which they are told."""

DOUBLE_T = (
    "#############",
    "#_____#_____#",
    "###_#####_###",
    "###_#####_###",
    "###_#####_###",
    "###_______###",
    "######_######",
    "######_######",
    "######_######",
    "#############",
)
UMAZE = ("#####", "#___#", "#_#_#", "#_#_#", "#####")
MAPS: dict[str, tuple[tuple[str, ...], Place]] = {"double_t": (DOUBLE_T, (8, 6)), "umaze": (UMAZE, (3, 3))}
"""Maps that are always the same, with their goal."""

RULES = """You walk through a maze to its goal, in as few steps as possible.
{seen}
Moves: move up, move down, move left, move right.{several} There are {turns} turns{total}.
Each step costs 1 (also one against a wall, which leads nowhere), the step onto the goal nothing."""
SEEN = {
    "position": (
        "You are told where the goal is and where you are (row, column; moving down adds 1 to the row, moving right 1 "
        "to the column), and where there are walls next to you."
    ),
    "walls": "You are told only where there are walls next to you.",
}
LEGEND = " You see the map: # wall, _ free, G goal."


class Level(NamedTuple):
    """A maze with its goal and the place to start from."""

    rows: tuple[str, ...]
    goal: Place
    start: Place


class MazeOptions(TextGameOptions):
    """``env_config`` of Maze."""

    max_turns: int = option(100, "Replies per episode.", ge=1)
    invalid_action_penalty: float = option(UNKNOWN_ACTION_REWARD, "Reward of a reply that is no move.", le=0)
    max_invalid_actions: int | None = option(
        None,
        "Invalid actions in a row that end the episode as a forfeit; null never ends it (a forfeit would be "
        "cheaper than a long way).",
        ge=1,
    )
    map: str = option("double_t", "Two fixed maps, or a new maze for every level.", choices=(*MAPS, "random"))
    dim_maze: tuple[int, int] = option((9, 9), "Rows and columns of random mazes, walls included (odd, 5 to 41 each).")
    observation: str = option("position", "Coordinates and walls, or the walls alone.", choices=tuple(SEEN))
    history: int = option(
        0, "Earlier moves shown in the observation, each with the walls that were seen then.", ge=0, le=100
    )
    show_map: bool = option(False, "Begin the rules with a map of the maze (without the player).")


class Maze(TextGame):
    """Walk through a maze to its goal.

    Observation: ``position``: ``The goal is at position 8, 6. Your current position is at position 5, 6. There is a
        wall above you.``; ``walls``: the last sentence alone, below it the last moves and what was seen before each
        (``history``).
    Action: ``move up``, ``move down``, ``move left`` or ``move right``.
    Reward: 0 for the step onto the goal, -1 for any other, -4 for a reply that is no move. A walk against a wall is
        accepted, costs a step and leads nowhere; the legal actions listed are those that lead somewhere.
    Horizon: 100 replies. Texts, rewards and budget are those of LMRL-Gym's maze (which writes the digits of a number
        apart, ``1 1`` for 11); its partially observed maze is ``MazePartial``. Nothing but the budget ends an episode
        early: three unknown actions cost less than a long way, so a forfeit would pay.
    Levels: where to start. The maps are the double T of LMRL-Gym (10x13, goal at 8, 6; 25 starts) and its U-shaped maze
        (6 starts), split by rank of their hash. ``random`` is a maze without loops with a random goal and start.
    Solver: breadth-first on the map, fewest steps. It knows the map, which a player on the fixed maps can learn.
    """

    variants = (
        Variant("lmgame/Maze-v0", (-400.0, 0.0), "Find the goal of a maze by coordinates and walls."),
        Variant(
            "lmgame/MazePartial-v0",
            (-400.0, 0.0),
            "Maze without coordinates: the walls around and the last moves.",
            {"observation": "walls", "history": 20},
        ),
        Variant("lmgame/MazeUmaze-v0", (-400.0, 0.0), "Maze in the shape of a U, 5x5.", {"map": "umaze"}),
        Variant("lmgame/MazeRandom-v0", (-400.0, 0.0), "A new 9x9 maze for every level.", {"map": "random"}),
    )
    Options: ClassVar[type[TextGameOptions]] = MazeOptions
    options: MazeOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        for side in chosen.dim_maze:
            if not 5 <= side <= 41 or side % 2 == 0:
                raise ConfigError(
                    "env_config.dim_maze", f"rows and columns must be odd and 5 to 41, got {list(chosen.dim_maze)}"
                )
        self._level: Level | None = None

    @property
    def rules(self) -> str:
        chosen = self.options
        per_turn = chosen.max_actions_per_turn
        rules = RULES.format(
            seen=SEEN[chosen.observation] + LEGEND * chosen.show_map,
            several=f" Up to {per_turn} moves per reply, joined by ||." if per_turn > 1 else "",
            turns=chosen.max_turns,
            total=self.total_rule(),
        )
        fixed = chosen.map in MAPS and chosen.show_map
        return rules + "\n" + drawing(*MAPS[chosen.map]) if fixed else rules

    @property
    def success(self) -> bool:
        assert self._level is not None
        return self._place == self._level.goal

    def levels(self, rng: random.Random) -> Iterator[Level]:
        if self.options.map in MAPS:
            starts = self._fixed_levels
            if not starts:
                raise ConfigError(
                    "env_config.max_turns", "no start is near enough to the goal for this budget; raise it"
                )
            while True:
                yield rng.choice(starts)
        failed = 0
        while failed < MAX_MAZES_TRIED:
            rows = carved(rng, *self.options.dim_maze)
            goal, start = rng.sample(free_places(rows), 2)
            failed += 1
            if distances(rows, goal)[start] <= self.moves_in_all:
                failed = 0
                yield Level(rows, goal, start)
        raise ConfigError("env_config.max_turns", "random mazes of this size take more steps than the budget; raise it")

    def level_key(self, level: Level) -> str:
        return f"maze {'/'.join(level.rows)} {level.goal} {level.start}"

    def split_of_level(self, digest: str, level: Level) -> str:
        return self._few_splits[digest] if self.options.map in MAPS else super().split_of_level(digest, level)

    def start(self, level: Level) -> None:
        self._level = level
        self._place = level.start
        self._seen: deque[str] = deque(maxlen=self.options.history)
        self._to_goal = distances(level.rows, level.goal)

    def board(self) -> str:
        assert self._level is not None
        if self.success:
            return "Success. You have reached the goal."
        now = walls_said(self._level.rows, self._place)
        if self.options.observation == "position":
            now = (
                f"The goal is at position {said(self._level.goal)}. Your current position is at position "
                f"{said(self._place)}. {now}"
            )
        if self.options.show_map and self.options.map not in MAPS:
            now = drawing(self._level.rows, self._level.goal) + "\n" + now
        return "\n".join((now, "Your last moves:", *self._seen)) if self._seen else now

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(name for name, step in STEPS.items() if self._ahead(step) != self._place)

    def read_move(self, text: str) -> str:
        move = " ".join(text.rstrip(".").lower().split())
        if move not in STEPS:
            raise InvalidAction("the moves are move up, move down, move left, move right.")
        return move

    def play_move(self, move: str) -> float:
        assert self._level is not None
        self._seen.append(f"{walls_said(self._level.rows, self._place)} -> {move}")
        self._place = self._ahead(STEPS[move])
        return GOAL_REWARD if self.success else STEP_REWARD

    def solve(self) -> list[str] | None:
        place, path = self._place, []
        while self._to_goal[place]:
            name, place = next(
                (name, ahead)
                for name, (down, right) in STEPS.items()
                if self._to_goal.get(ahead := (place[0] + down, place[1] + right), len(self._to_goal))
                < self._to_goal[place]
            )
            path.append(name)
        return path

    def _ahead(self, step: Place) -> Place:
        assert self._level is not None
        row, column = self._place[0] + step[0], self._place[1] + step[1]
        return self._place if self._level.rows[row][column] == "#" else (row, column)

    @cached_property
    def _fixed_levels(self) -> list[Level]:
        """All levels of a fixed map that can be solved within the budget."""
        rows, goal = MAPS[self.options.map]
        return [
            Level(rows, goal, start) for start, steps in distances(rows, goal).items() if 0 < steps <= self.moves_in_all
        ]

    @cached_property
    def _few_splits(self) -> dict[str, str]:
        keys = [self.level_key(level) for level in self._fixed_levels]
        if len(keys) < 3:
            raise ConfigError("env_config.max_turns", "leaves too few starts to split; raise it or take split 'all'")
        return {level_digest(key): split for key, split in split_few(keys).items()}


def said(place: Place) -> str:
    """A place as the player reads it."""
    return f"{place[0]}, {place[1]}"


def walls_said(rows: tuple[str, ...], place: Place) -> str:
    """The walls next to a place, in a sentence."""
    sides = [side for side, (down, right) in SIDES.items() if rows[place[0] + down][place[1] + right] == "#"]
    if not sides:
        return "There are no walls near you."
    return f"There is a wall {sides[0]}." if len(sides) == 1 else f"There are walls {', '.join(sides)}."


def drawing(rows: tuple[str, ...], goal: Place) -> str:
    """The map with its goal."""
    lines = list(rows)
    lines[goal[0]] = lines[goal[0]][: goal[1]] + "G" + lines[goal[0]][goal[1] + 1 :]
    return "\n".join(lines)


def free_places(rows: tuple[str, ...]) -> list[Place]:
    """All places that are no wall."""
    return [(row, column) for row, line in enumerate(rows) for column, char in enumerate(line) if char != "#"]


def distances(rows: tuple[str, ...], goal: Place) -> dict[Place, int]:
    """Steps to the goal from every place from which it can be reached."""
    found = {goal: 0}
    queue = deque([goal])
    while queue:
        row, column = queue.popleft()
        for down, right in STEPS.values():
            ahead = (row + down, column + right)
            if ahead not in found and rows[ahead[0]][ahead[1]] != "#":
                found[ahead] = found[row, column] + 1
                queue.append(ahead)
    return found


def carved(rng: random.Random, height: int, width: int) -> tuple[str, ...]:
    """A maze without loops: a random depth-first walk over the cells with odd row and column opens the
    walls between them.
    """
    grid = [["#"] * width for _ in range(height)]
    path = [(rng.randrange(height // 2) * 2 + 1, rng.randrange(width // 2) * 2 + 1)]
    grid[path[0][0]][path[0][1]] = "_"
    while path:
        row, column = path[-1]
        closed = [
            (row + 2 * down, column + 2 * right)
            for down, right in STEPS.values()
            if 0 < row + 2 * down < height
            and 0 < column + 2 * right < width
            and grid[row + 2 * down][column + 2 * right] == "#"
        ]
        if not closed:
            path.pop()
            continue
        ahead = rng.choice(closed)
        grid[(row + ahead[0]) // 2][(column + ahead[1]) // 2] = grid[ahead[0]][ahead[1]] = "_"
        path.append(ahead)
    return tuple("".join(line) for line in grid)
