"""The board of ConnectFour as two numbers, and alpha-beta search to a fixed depth on it.

A column takes ``rows + 1`` bits, the lowest square first; its uppermost bit stays empty, so that no line of stones runs
from one column into the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

Bounds = dict[tuple[int, int], tuple[int, int]]
"""Least and greatest value of positions (stones of the player to move, stones of the other)."""


@dataclass(frozen=True)
class Grid:
    """Shape of the board and length of a winning line.

    Attributes:
        rows: Squares of a column.
        columns: Columns.
        connect: Stones in a line that win.
    """

    rows: int = 6
    columns: int = 7
    connect: int = 4

    @cached_property
    def files(self) -> tuple[int, ...]:
        """The squares of every column, from the left."""
        return tuple(((1 << self.rows) - 1) << (column * (self.rows + 1)) for column in range(self.columns))

    @cached_property
    def middle_first(self) -> tuple[int, ...]:
        """:attr:`files`, those in the middle first: they lie on more lines, so that a search that
        begins there cuts more.
        """
        order = sorted(range(self.columns), key=lambda column: abs(2 * column - self.columns + 1))
        return tuple(self.files[column] for column in order)

    @cached_property
    def full(self) -> int:
        """All squares."""
        return sum(self.files)

    @cached_property
    def feet(self) -> int:
        """The lowest square of every column."""
        return sum(1 << (column * (self.rows + 1)) for column in range(self.columns))

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Distance of neighbours on a column, a row and the two diagonals, in bits."""
        return 1, self.rows + 1, self.rows, self.rows + 2

    def playable(self, stones: int) -> int:
        """The squares on which the next stone can come to rest.

        Args:
            stones: Stones of both players.
        """
        return (stones + self.feet) & self.full

    def square(self, stones: int, column: int) -> int:
        """The square on which a stone dropped into ``column`` (from 0) comes to rest; 0 if the column is full."""
        return self.playable(stones) & self.files[column]

    def has_line(self, stones: int) -> bool:
        """Whether one player's stones hold a winning line."""
        for step in self.steps:
            starts = stones
            for distance in range(1, self.connect):
                starts &= stones >> (step * distance)
            if starts:
                return True
        return False

    def completing(self, stones: int) -> int:
        """The squares that make a winning line together with one player's stones, whether they are free or not."""
        found, before = 0, [self.full] * self.connect
        for step in self.steps:
            after = self.full
            for i in range(1, self.connect):
                before[i] = before[i - 1] & (stones << step * i)
            found |= before[-1]
            for i in range(1, self.connect):
                after &= stones >> step * i
                found |= before[-1 - i] & after
        return found


def best_columns(grid: Grid, own: int, other: int, depth: int) -> list[int]:
    """The best columns for the player to move, looking ``depth`` moves ahead, the one now included.

    A win is worth the moves of the search that it leaves unused, plus 1 (``depth`` if it comes at once); a loss is
    worth the negative of that. What is not decided within ``depth`` moves, and a full board, is worth 0. So the best
    columns win as soon and lose as late as they can. None on a full board.

    Args:
        grid: The board.
        own: Stones of the player to move.
        other: Stones of the opponent; the game is not over.
        depth: Moves looked ahead, 1 or more.
    """
    playable, wins = grid.playable(own | other), grid.completing(own)
    table: Bounds = {}
    best = -depth - 1
    columns: list[int] = []
    for column, file in enumerate(grid.files):
        square = playable & file
        if not square:
            continue
        # Below the best value so far a bound will do.
        worth = depth if square & wins else -_value(grid, other, own | square, depth - 1, -depth, 1 - best, table)
        if worth > best:
            best, columns = worth, []
        if worth == best:
            columns.append(column)
    return columns


def _value(grid: Grid, own: int, other: int, depth: int, low: int, high: int, table: Bounds) -> int:
    """Value for the player to move: exact between ``low`` and ``high``, else a bound on the same side of them.

    A position that is met twice in a search has the same number of moves left to look at, so that ``table`` need not
    say it.
    """
    stones = own | other
    playable = grid.playable(stones)
    if depth == 0 or not playable:
        return 0
    if playable & grid.completing(own):
        return depth
    if depth == 1:
        return 0
    least, most = table.get((own, other), (1 - depth, depth - 2))
    low, high = max(low, least), min(high, most)
    if low >= high:
        return low
    best, floor = -depth, low
    for square in _candidates(grid, playable, playable & grid.completing(other)):
        best = max(best, -_value(grid, other, own | square, depth - 1, -high, -floor, table))
        floor = max(floor, best)
        if floor >= high:
            break
    table[own, other] = (best if best > low else least, best if best < high else most)
    return best


def _candidates(grid: Grid, playable: int, threats: int) -> Iterator[int]:
    """Squares to try: one on which the opponent would win at once (a second threat could not be met anyhow), or all."""
    if threats:
        yield threats & -threats
        return
    for file in grid.middle_first:
        if playable & file:
            yield playable & file
