"""Sokoban: push every box onto a target."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import SEPARATOR, InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.games.grids.sokoban_rooms import Distances, Level, bits, carve, directions, inner_cells, move
from rllib_lmgame.envs.games.grids.sokoban_walks import pulled_apart, walked_room

MAX_ROOMS_TRIED = 5_000
MAX_SEARCH_S = 30.0
"""CPU time in which gym-sokoban's generator must find a level: large rooms with two boxes take up to 0.2 s each."""

MIN_FREE_SHARE = 0.4
"""Rooms with less of their inside dug out are mere corridors and are thrown away."""

STARTS_PER_ROOM = 16
STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0

RULES = """You play Sokoban. Push every box onto a target; the player can push one box at a time and cannot pull.
{legend}
Moves: {moves}. {per_reply}
There are {turns} turns{total}. Each move costs 0.1, a box on a target gives 1, solving the room gives 10."""
SYMBOLS = "#_O√XPS"
"""Wall, floor, target, box on target, box, player, player on target: in the order of gym-sokoban's numbers of them."""

LEGEND = "{0} wall, {1} floor, {2} target, {4} box, {3} box on a target, {5} player, {6} player on a target."
COORDINATES = (
    "Places are given as (row, column), from (0, 0) at the top left; the border of the room of {} rows and {} "
    "columns is wall."
)
NUMBERED = "Each cell is shown with its number, counted row by row from 1; the border, all wall, is left out."
CELL_NAMES = ("wall", "floor", "target", "box on target", "box", "player", "player on target")
TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(2, 7)


class SokobanOptions(TextGameOptions):
    """``env_config`` of Sokoban."""

    max_turns: int = option(6, "Replies per episode.", ge=1)
    max_actions_per_turn: int = option(5, "Moves per reply, joined by `||`; what goes beyond is not played.", ge=1)
    max_actions: int | None = option(10, "Moves per episode; null is no limit.", ge=1)
    dim_room: tuple[int, int] = option(
        (6, 6), "Rows and columns of the room, border included (4 to 12 each, not both 4)."
    )
    num_boxes: int = option(1, "Boxes and targets.", ge=1, le=2)
    generator: str = option(
        "distance",
        "Starts drawn uniformly by the distance to the solution, or rooms and starts as gym-sokoban draws them.",
        choices=("distance", "gym_sokoban"),
    )
    search_depth: int = option(300, "Moves that the generator `gym_sokoban` walks backwards at most.", ge=2, le=1_000)
    min_distance: int = option(3, "Moves the shortest solution has at least.", ge=1)
    max_distance: int | None = option(
        None, "Moves the shortest solution has at most; null is what the budget allows (`distance`: 20 at most).", ge=1
    )
    show_grid: bool = option(
        True, "Show the room as rows of symbols; without it coordinates are shown, those of the walls inside included."
    )
    show_coordinates: bool = option(False, "Add the row and column of player, boxes and targets to the observation.")
    numbered_cells: bool = option(
        False,
        "Show the room without its border, each cell with its number (`P7`). To a tiny model with room for them "
        "(`vocab_size` 512 for 6x6) nearly all cells in the usual symbols are one token.",
    )
    symbols: str = option(
        SYMBOLS, "Seven characters: wall, floor, target, box on target, box, player, player on target.", stranger=True
    )
    moves: tuple[str, str, str, str] = option(
        ("Up", "Down", "Left", "Right"), "What a player writes to go up, down, left and right.", stranger=True
    )


class Sokoban(TextGame):
    """Push boxes onto targets in a small warehouse.

    Observation: the rows of the room, with ``#`` wall, ``_`` floor, ``O`` target, ``X`` box, ``√`` box on a target,
        ``P`` player and ``S`` player on a target. Options add a line with coordinates (row, column; from 0, top left),
        or show coordinates alone, or the cells inside the border with their numbers. Symbols and the names of the moves
        are options, to train and test with another vocabulary than the usual one.
    Action: ``Up``, ``Down``, ``Left`` or ``Right``, several joined by ``||``. Walking against a wall or a box that
        cannot move is accepted, costs a step and changes nothing; the legal actions listed are those that change
        something.
    Reward: -0.1 a move, +1 for a box pushed onto a target, -1 for one pushed off it, +10 when solved (a solution by one
        push earns 10.9). -0.1 for a reply that cannot be read. A forfeit costs as much as the moves left.
    Horizon: 6 replies of up to 5 moves, 10 moves in all. Symbols, rewards and budgets are those of GRL, rewards
        originally of gym-sokoban.
    Levels: an own generator. A random walk carves the room. A breadth-first search backwards from the solved state
        gives the optimal distance of every state. The start is drawn uniformly over the distances from ``min_distance``
        to ``max_distance``, so every level can be solved within its budget. A reset of the default room takes well
        below a millisecond. ``generator: gym_sokoban`` draws rooms as gym-sokoban does and keeps those that can be
        solved within the budget: 6x6 with one box takes 1 to 13 moves (one move in three levels of ten), with two
        boxes 2 to 26. The levels of SCOUT (arXiv 2601.21754) are ``generator: gym_sokoban, min_distance: 1, max_turns:
        25, max_actions: null``, with one and with two boxes; its search depth is 100 or 300.
    Solver: optimal in moves.
    """

    variants = (
        Variant("lmgame/Sokoban-v0", (-1.4, 10.7), "Push a box onto its target, 6x6."),
        Variant("lmgame/SokobanLarge-v0", (-1.4, 10.7), "Sokoban 8x8, one box.", {"dim_room": (8, 8)}),
        Variant(
            "lmgame/SokobanTwoBoxes-v0", (-2.4, 11.7), "Sokoban 8x8, two boxes.", {"dim_room": (8, 8), "num_boxes": 2}
        ),
        Variant(
            "lmgame/SokobanCoordinates-v0",
            (-1.4, 10.7),
            "Sokoban 6x6 told in coordinates.",
            {"show_grid": False, "show_coordinates": True},
        ),
        Variant(
            "lmgame/SokobanNumbers-v0",
            (-1.4, 10.7),
            "Sokoban 6x6 with digits for symbols and moves, as gym-sokoban numbers them.",
            {"symbols": "0123456", "moves": ("1", "2", "3", "4")},
        ),
    )
    Options: ClassVar[type[TextGameOptions]] = SokobanOptions
    move_cost = -STEP_REWARD
    options: SokobanOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._height, self._width = self.options.dim_room
        if not 4 <= min(self.options.dim_room) <= max(self.options.dim_room) <= 12 or max(self.options.dim_room) == 4:
            raise ConfigError(
                "env_config.dim_room",
                "rows and columns must be 4 to 12, one of them 5 at least (a push takes three cells in a line), "
                f"got {list(self.options.dim_room)}",
            )
        self._check_vocabulary()
        self._max_distance = self._longest_solution()
        self._steps = dict(zip(self.options.moves, directions(self._width).values(), strict=True))
        self._by_name = {name.lower(): step for name, step in self._steps.items()}
        self._distances: Distances | None = None

    @property
    def rules(self) -> str:
        chosen = self.options
        legend = LEGEND.format(*chosen.symbols) if chosen.show_grid else ""
        if chosen.show_grid and chosen.numbered_cells:
            legend += "\n" + NUMBERED
        if chosen.show_coordinates or not chosen.show_grid:
            legend = "\n".join(filter(None, (legend, COORDINATES.format(self._height, self._width))))
        return RULES.format(
            legend=legend,
            moves=", ".join(
                move if move == way else f"{move} ({way.lower()})"
                for move, way in zip(chosen.moves, directions(1), strict=True)
            ),
            per_reply=self.moves_rule((chosen.moves[0], chosen.moves[3])),
            turns=chosen.max_turns,
            total=self.total_rule(),
        )

    @property
    def success(self) -> bool:
        return self._boxes == self._targets

    def levels(self, rng: random.Random) -> Iterator[Level]:
        if self.options.generator == "gym_sokoban":
            yield from self._walked_levels(rng)
        while True:
            distances, targets = self._room(rng)
            last = len(distances.layers) - 1
            for _ in range(STARTS_PER_ROOM):
                distance = rng.randint(self.options.min_distance, min(last, self._max_distance))
                boxes, player = distances.draw(rng, distance)
                self._distances = distances
                yield Level(self._height, self._width, distances.free, targets, boxes, player, distance)

    def level_key(self, level: Level) -> str:
        return f"sokoban {level.height} {level.width} {level.free:x} {level.targets:x} {level.boxes:x} {level.player:x}"

    def start(self, level: Level) -> None:
        self._free, self._targets, self._boxes, self._player = level.free, level.targets, level.boxes, level.player
        if (
            self._distances is None
            or self._distances.free != level.free
            or level.targets not in self._distances.layers[0]
        ):
            self._distances = Distances(level.free, level.targets, level.width)
        symbols = self.options.symbols
        cells = [symbols[level.free >> i & 1] for i in range(level.height * level.width)]
        for target in bits(level.targets):
            cells[target.bit_length() - 1] = symbols[TARGET]
        self._cells = cells

    def board(self) -> str:
        shown = self._grid() if self.options.show_grid else []
        if self.options.show_coordinates or not shown:
            shown.append(
                f"Player {self._places(self._player)}, boxes {self._places(self._boxes)}, targets "
                f"{self._places(self._targets)}."
            )
        if not self.options.show_grid:
            walls = inner_cells(self._height, self._width) & ~self._free
            shown.append(f"Walls inside: {self._places(walls)}." if walls else "There are no walls inside.")
        return "\n".join(shown)

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(name for name, step in self._steps.items() if move(self._free, self._boxes, self._player, step))

    def read_move(self, text: str) -> int:
        step = self._by_name.get(text.rstrip(".").lower())
        if step is None:
            raise InvalidAction(f"each move must be one of {', '.join(self.options.moves)}; several are joined by ||.")
        return step

    def play_move(self, step: int) -> float:
        after = move(self._free, self._boxes, self._player, step)
        if after is None:
            return STEP_REWARD
        placed = (self._boxes & self._targets).bit_count()
        self._boxes, self._player = after
        reward = STEP_REWARD + BOX_REWARD * ((self._boxes & self._targets).bit_count() - placed)
        return reward + SOLVED_REWARD if self.success else reward

    def solve(self) -> list[str] | None:
        """Moves of a shortest solution from the current state, or ``None`` if a box is stuck."""
        assert self._distances is not None
        boxes, player, path = self._boxes, self._player, []
        distance = self._distances.of(boxes, player)
        if distance is None:
            return None
        while distance:
            distance -= 1
            layer = self._distances.layers[distance]
            for name, step in self._steps.items():
                after = move(self._free, boxes, player, step)
                if after and layer.get(after[0], 0) & after[1]:
                    boxes, player = after
                    path.append(name)
                    break
        return path

    def _longest_solution(self) -> int:
        """Most moves a level may need: what was asked for, within the budget."""
        chosen = self.options
        budget = self.moves_in_all
        longest = budget if chosen.generator == "gym_sokoban" else min(budget, 20)
        longest = longest if chosen.max_distance is None else chosen.max_distance
        if longest > budget:
            raise ConfigError(
                "env_config.max_distance",
                f"a level of {longest} moves cannot be solved within a budget of {budget} moves; lower it or "
                "raise max_actions, max_turns",
            )
        if longest < chosen.min_distance:
            raise ConfigError(
                "env_config.min_distance",
                f"must be at most {longest}, the longest solution that max_distance and the budget of {budget} "
                "moves allow",
            )
        return longest

    def _room(self, rng: random.Random) -> tuple[Distances, int]:
        """A room with targets whose states reach ``min_distance``."""
        least = max(MIN_FREE_SHARE * (self._height - 2) * (self._width - 2), 2 * self.options.num_boxes + 1)
        for _ in range(MAX_ROOMS_TRIED):
            free = carve(rng, self._height, self._width)
            if free.bit_count() < least:
                continue
            cells = bits(free)
            targets = sum(rng.sample(cells, self.options.num_boxes))
            distances = Distances(free, targets, self._width)
            if distances.grow_to(self._max_distance) >= self.options.min_distance:
                return distances, targets
        raise self._no_room()

    def _walked_levels(self, rng: random.Random) -> Iterator[Level]:
        """Levels of gym-sokoban's generator whose shortest solution has an allowed length."""
        failed, began = 0, time.thread_time()
        while failed < MAX_ROOMS_TRIED and time.thread_time() < began + MAX_SEARCH_S:
            failed += 1
            free = walked_room(rng, self._height, self._width)
            if free.bit_count() <= self.options.num_boxes + 1:
                continue
            player, *targets = rng.sample(bits(free), self.options.num_boxes + 1)
            start = pulled_apart(free, targets, player, self._width, self.options.search_depth)
            if start is None:
                continue
            distances = Distances(free, sum(targets), self._width)
            distances.grow_to(self._max_distance)
            distance = distances.known(*start)
            if distance is not None and distance >= self.options.min_distance:
                self._distances = distances
                yield Level(self._height, self._width, free, sum(targets), *start, distance)
                failed, began = 0, time.thread_time()
        raise self._no_room()

    def _no_room(self) -> ConfigError:
        least, boxes = self.options.min_distance, self.options.num_boxes
        room = f"no room of {self._height}x{self._width} with num_boxes={boxes} was found whose solution has {least}"
        mend = "lower it, or change dim_room, num_boxes or max_distance"
        return ConfigError("env_config.min_distance", f"{room} to {self._max_distance} moves; {mend}")

    def _check_vocabulary(self) -> None:
        symbols, moves = self.options.symbols, self.options.moves
        if len(symbols) != len(SYMBOLS) or len(set(symbols)) != len(SYMBOLS) or any(char.isspace() for char in symbols):
            raise ConfigError(
                "env_config.symbols",
                f"must be {len(SYMBOLS)} different characters ({', '.join(CELL_NAMES)}), got {symbols!r}",
            )
        words = {move.lower() for move in moves}
        if len(words) != len(moves) or any(
            word != word.strip(" .\n") or not word or SEPARATOR in word for word in words
        ):
            raise ConfigError(
                "env_config.moves", f"must be four different words (up, down, left, right), got {list(moves)}"
            )
        if self.options.numbered_cells and not self.options.show_grid:
            raise ConfigError("env_config.numbered_cells", "numbers the cells of the grid; set show_grid: true")
        if self.options.numbered_cells and any(symbol.isnumeric() for symbol in symbols):
            raise ConfigError(
                "env_config.numbered_cells", f"needs env_config.symbols that are no digits themselves, got {symbols!r}"
            )

    def _grid(self) -> list[str]:
        """The rows of the room."""
        symbols = self.options.symbols
        cells = list(self._cells)
        for box in bits(self._boxes):
            cells[box.bit_length() - 1] = symbols[BOX_ON_TARGET if box & self._targets else BOX]
        cells[self._player.bit_length() - 1] = symbols[PLAYER_ON_TARGET if self._player & self._targets else PLAYER]
        if not self.options.numbered_cells:
            return ["".join(cells[i : i + self._width]) for i in range(0, len(cells), self._width)]
        inner, columns = bits(inner_cells(self._height, self._width)), self._width - 2
        marks = [f"{cells[bit.bit_length() - 1]}{number}" for number, bit in enumerate(inner, 1)]
        return [" ".join(marks[i : i + columns]) for i in range(0, len(marks), columns)]

    def _places(self, mask: int) -> str:
        places = [divmod(bit.bit_length() - 1, self._width) for bit in bits(mask)]
        return " and ".join(f"({row}, {column})" for row, column in places)
