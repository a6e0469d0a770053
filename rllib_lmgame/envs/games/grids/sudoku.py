"""Sudoku: fill the empty cells of a grid, a number at a time."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant

Move = tuple[int, int, int]
"""Number, row and column, each from 1."""

RIGHT_REWARD, WRONG_REWARD, SOLVED_REWARD = 1.0, -0.1, 10.0
MOST_EMPTY = {4: 12, 9: 58}
"""Size -> empty cells that a grid with one solution has at most. With fewer than 4 numbers a 4x4 grid always has
several; there are 9x9 grids with 17, but of random ones with fewer than 23 hardly any has one.
"""

EMPTY = "0"
MOVE = re.compile(
    r"([0-9])(?:, ?| )([0-9])(?:, ?| )([0-9])|place ([0-9]) at row ([0-9]),? col(?:umn)? ([0-9])", re.IGNORECASE
)

RULES = """You fill a Sudoku of {size}x{size} cells: in the end each row, each column and each of the {size} boxes of \
{box}x{box} cells has each number from 1 to {size} once.
The grid is shown row by row; 0 is an empty cell.{several}
Reply with a number, its row and its column, counted from 1 at the top left: 1,2,3 places 1 at row 2 col 3. {moves}
You have {turns} turns{total}. A right number gives 1, a wrong one costs 0.1 and is taken back, a full grid gives 10."""
SEVERAL = " There may be several solutions: a number is right if one of them has it, and all that were placed before."


class SudokuOptions(TextGameOptions):
    """``env_config`` of Sudoku."""

    max_turns: int = option(20, "Replies per episode.", ge=1)
    size: int = option(4, "Rows and columns: 4 or 9.", choices=(4, 9))
    empty: int = option(6, "Cells that are to be filled.", ge=1, le=81)
    unique: bool = option(
        True,
        "Only grids with one solution; otherwise cells are emptied at random (SCOUT), and a number is right if some "
        "solution has it.",
    )


class Sudoku(TextGame):
    """Fill a Sudoku, a number at a time.

    Observation: the rows of the grid, digits without spaces, ``0`` for an empty cell; above it, after a wrong number,
        which it was.
    Action: ``1,2,3`` or ``place 1 at row 2 col 3``: the number, the row and the column.
    Reward: 1 for a right number, -0.1 for a wrong one, which is taken back, and 10 more when the grid is full. -0.1 for
        a reply that cannot be read or names a cell that has a number. A number is right if the grid can still be filled
        with it: where there are several solutions (``unique: false``), numbers of each are right until they leave one.
        The legal actions listed are all numbers in all empty cells.
    Horizon: 20 replies of one number for six empty cells. Rewards, limit and shape are those of SCOUT (arXiv
        2601.21754), whose grids may have several solutions.
    Levels: a random solved grid of which cells are emptied in random order. With ``unique`` a cell that would give the
        grid a second solution keeps its number, and a grid with too many of these is drawn anew. Of random 4x4 grids
        with six empty cells 4 in 100 have several solutions.
    Solver: backtracking. The expert fills the cell with the fewest possible numbers first.
    """

    variants = (
        Variant("lmgame/Sudoku-v0", (-2.0, 16.0), "Fill six cells of a 4x4 Sudoku, a number at a time."),
        Variant(
            "lmgame/SudokuLarge-v0",
            (-6.4, 42.0),
            "Sudoku 9x9 with 32 empty cells.",
            {"size": 9, "empty": 32, "max_turns": 64},
        ),
    )
    Options: ClassVar[type[TextGameOptions]] = SudokuOptions
    options: SudokuOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        most, kind = (MOST_EMPTY[chosen.size], " with one solution") if chosen.unique else (chosen.size**2 - 1, "")
        if chosen.empty > most:
            raise ConfigError(
                "env_config.empty",
                f"a grid of {chosen.size}x{chosen.size}{kind} has at most {most} empty cells here; lower it"
                + " or set unique: false" * chosen.unique,
            )
        if chosen.empty > self.moves_in_all:
            raise ConfigError(
                "env_config.empty",
                f"{chosen.empty} cells cannot be filled with {self.moves_in_all} moves; lower it or raise max_turns, "
                "max_actions",
            )

    @property
    def rules(self) -> str:
        chosen = self.options
        return RULES.format(
            size=chosen.size,
            box=math.isqrt(chosen.size),
            several="" if chosen.unique else SEVERAL,
            moves=self.moves_rule(("1,2,3", "4,1,1"), "number"),
            turns=chosen.max_turns,
            total=self.total_rule("number"),
        )

    @property
    def success(self) -> bool:
        return EMPTY not in self._grid

    def levels(self, rng: random.Random) -> Iterator[str]:
        chosen = self.options
        while True:
            grid = emptied(rng, solved_grid(rng, chosen.size), chosen.empty, chosen.unique)
            if grid is not None:
                yield grid

    def level_key(self, level: str) -> str:
        return f"sudoku {level}"

    def start(self, level: str) -> None:
        self._grid = level

    def board(self) -> str:
        size = self.options.size
        rows = [self._grid[i : i + size] for i in range(0, size * size, size)]
        return "\n".join([self._said, *rows] if self._said else rows)

    def legal_actions(self) -> tuple[str, ...]:
        numbers = range(1, self.options.size + 1)
        return tuple(move_text(self._grid, cell, number) for cell in empty_cells(self._grid) for number in numbers)

    def read_move(self, text: str) -> Move:
        match = MOVE.fullmatch(" ".join(text.rstrip(".").split()))
        size = self.options.size
        if match is None or not all(1 <= int(said) <= size for said in match.groups() if said):
            raise InvalidAction(f"each move must be a number, a row and a column from 1 to {size}, such as 1,2,3.")
        number, row, column = (int(said) for said in match.groups() if said)
        return number, row, column

    def play_move(self, move: Move) -> float:
        number, row, column = move
        cell = (row - 1) * self.options.size + column - 1
        if self._grid[cell] != EMPTY:
            raise InvalidAction(f"row {row}, column {column} has a number already.")
        if not can_be(self._grid, cell, number):
            self._said = f"{self._said}\n{number} at row {row}, column {column} is wrong.".strip()
            return WRONG_REWARD
        self._grid = placed(self._grid, cell, number)
        return RIGHT_REWARD + (SOLVED_REWARD if self.success else 0.0)

    def solve(self) -> list[str]:
        """The numbers of a solution, cells with the fewest possible numbers first."""
        grid, path = self._grid, []
        solution = next(solutions(grid))
        while cells := empty_cells(grid):
            cell = min(cells, key=lambda cell: len(possible(grid, cell)))
            path.append(move_text(grid, cell, int(solution[cell])))
            grid = placed(grid, cell, int(solution[cell]))
        return path


def move_text(grid: str, cell: int, number: int) -> str:
    """The action as a player types it."""
    row, column = divmod(cell, math.isqrt(len(grid)))
    return f"{number},{row + 1},{column + 1}"


def placed(grid: str, cell: int, number: int) -> str:
    """The grid with a number in a cell."""
    return f"{grid[:cell]}{number}{grid[cell + 1 :]}"


def empty_cells(grid: str) -> list[int]:
    """The cells without a number, in reading order."""
    return [cell for cell, number in enumerate(grid) if number == EMPTY]


@cache
def units(size: int) -> tuple[tuple[int, int, int], ...]:
    """Row, column and box of each cell, numbered together."""
    box = math.isqrt(size)
    places = itertools.product(range(size), repeat=2)
    return tuple((row, size + column, 2 * size + row // box * box + column // box) for row, column in places)


@cache
def neighbours(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell the others in its row, its column and its box."""
    cells = units(size)
    return tuple(
        tuple(i for i, theirs in enumerate(cells) if i != cell and not {*theirs}.isdisjoint(own))
        for cell, own in enumerate(cells)
    )


def possible(grid: str, cell: int) -> list[int]:
    """The numbers that no other cell of its row, column and box has."""
    size = math.isqrt(len(grid))
    taken = {grid[other] for other in neighbours(size)[cell]}
    return [number for number in range(1, size + 1) if str(number) not in taken]


def solutions(grid: str, rng: random.Random | None = None) -> Iterator[str]:
    """All ways to fill the empty cells, in random order with a generator.

    Backtracking: a cell with one possible number is filled first, then one whose number has no other cell in its row,
    column or box, else a cell with the fewest possible numbers.

    Args:
        grid: No number stands twice in a row, column or box of it.
        rng: Draws the order.
    """
    size = math.isqrt(len(grid))
    of = units(size)
    filled = [int(number) for number in grid]
    lacks = [(2 << size) - 2] * (3 * size)  # For each unit the bits of the numbers that it lacks.
    for cell, number in enumerate(filled):
        for unit in of[cell] if number else ():
            lacks[unit] ^= 1 << number

    def fill(cells: list[int]) -> Iterator[str]:
        if not cells:
            yield "".join(map(str, filled))
            return
        fits = {cell: lacks[row] & lacks[column] & lacks[box] for cell in cells for row, column, box in (of[cell],)}
        cell = min(cells, key=lambda cell: fits[cell].bit_count())
        numbers = fits[cell]
        if numbers.bit_count() > 1:
            once, again = [0] * len(lacks), [0] * len(lacks)
            for each, mask in fits.items():
                for unit in of[each]:
                    again[unit] |= once[unit] & mask
                    once[unit] |= mask
            if once != lacks:  # A number has no cell left in some unit.
                return
            lone = [a & ~b for a, b in zip(once, again, strict=True)]
            found = ((each, fits[each] & (lone[a] | lone[b] | lone[c])) for each in cells for a, b, c in (of[each],))
            cell, numbers = next((pair for pair in found if pair[1]), (cell, numbers))
        choices = [number for number in range(1, size + 1) if numbers >> number & 1]
        for number in rng.sample(choices, len(choices)) if rng else choices:
            filled[cell] = number
            for unit in of[cell]:
                lacks[unit] ^= 1 << number
            yield from fill([other for other in cells if other != cell])
            for unit in of[cell]:
                lacks[unit] ^= 1 << number

    return fill(empty_cells(grid))


def can_be(grid: str, cell: int, number: int) -> bool:
    """Whether the grid can be filled with this number in this empty cell."""
    return number in possible(grid, cell) and any(solutions(placed(grid, cell, number)))


@cache
def small_grids() -> tuple[str, ...]:
    """The 288 solved grids of 4x4."""
    return tuple(solutions(EMPTY * 16))


def solved_grid(rng: random.Random, size: int) -> str:
    """A random solved grid; of 4x4 each is as likely."""
    return rng.choice(small_grids()) if size == 4 else next(solutions(EMPTY * size**2, rng))


def emptied(rng: random.Random, grid: str, count: int, unique: bool) -> str | None:
    """A solved grid with ``count`` cells emptied in random order, ``None`` if too few can be.

    With ``unique`` a cell is left that could then have another number.
    """
    for cell in rng.sample(range(len(grid)), len(grid)):
        without = placed(grid, cell, int(EMPTY))
        others = (number for number in possible(without, cell) if str(number) != grid[cell])
        if not unique or not any(can_be(without, cell, number) for number in others):
            grid = without
            if grid.count(EMPTY) == count:
                return grid
    return None
