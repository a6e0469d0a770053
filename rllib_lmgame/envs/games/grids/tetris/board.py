"""The board of Tetris: pieces, falling, locking, clearing, and where a piece can be brought to rest.

A row of the board is a mask of its columns, bit 0 leftmost; a board is its rows, top first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

Board = tuple[int, ...]
Shape = tuple[int, ...]
"""Rows of a piece, top first, as masks."""

LEFT, RIGHT, DOWN, ROTATE = "Left", "Right", "Down", "Rotate"

DRAWINGS: dict[str, tuple[str, ...]] = {
    "singles": ("#",),
    "dominoes": ("##", "#/#"),
    "tetrominoes": ("####", "##/##", "###/.#.", ".##/##.", "##./.##", "###/..#", "###/#.."),
}
"""Pieces of each set as they appear, rows divided by a slash."""


def shape_of(drawing: str) -> Shape:
    """A shape from its drawing."""
    return tuple(sum(1 << i for i, char in enumerate(row) if char == "#") for row in drawing.split("/"))


def turned(shape: Shape) -> Shape:
    """The shape turned clockwise by a quarter."""
    return tuple(
        sum((row >> column & 1) << i for i, row in enumerate(reversed(shape))) for column in range(wide(shape))
    )


def wide(shape: Shape) -> int:
    """Columns of a shape."""
    return max(row.bit_length() for row in shape)


SHAPES: dict[str, tuple[Shape, ...]] = {name: tuple(map(shape_of, drawings)) for name, drawings in DRAWINGS.items()}
TURNED = {
    shape: turned(shape)
    for shapes in SHAPES.values()
    for first in shapes
    for shape in (first, turned(first), turned(turned(first)))
}
TURNED |= {shape: turned(shape) for shape in TURNED.values()}


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece that has not landed; ``row`` and ``column`` are those of the upper left corner of its shape."""

    shape: Shape
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What does not change during a game.

    Attributes:
        columns: Columns of the board.
        gravity: The piece falls a row after every move but ``Down``.
        moves: Moves there are.
    """

    columns: int
    gravity: bool
    moves: tuple[str, ...]


def fits(board: Board, columns: int, piece: Piece) -> bool:
    """Whether the piece lies on the board and on no locked cell."""
    row, column = piece.row, piece.column
    if column < 0 or row + len(piece.shape) > len(board):
        return False
    for i, cells in enumerate(piece.shape):
        cells <<= column
        if cells >> columns or cells & board[row + i]:
            return False
    return True


def moved(board: Board, rules: Rules, piece: Piece, move: str) -> Piece:
    """The piece after a move, where it was if there is no room."""
    if move == LEFT:
        ahead = replace(piece, column=piece.column - 1)
    elif move == RIGHT:
        ahead = replace(piece, column=piece.column + 1)
    elif move == DOWN:
        ahead = replace(piece, row=piece.row + 1)
    else:
        ahead = replace(piece, shape=TURNED[piece.shape])
    return ahead if fits(board, rules.columns, ahead) else piece


def after_move(board: Board, rules: Rules, piece: Piece, move: str) -> tuple[Piece, bool]:
    """The piece after a move and, with gravity, a fall by one row; and whether it has landed."""
    piece = moved(board, rules, piece, move)
    if rules.gravity and move != DOWN:
        piece = moved(board, rules, piece, DOWN)
    return piece, moved(board, rules, piece, DOWN) is piece


def locked(board: Board, columns: int, piece: Piece) -> tuple[Board, int]:
    """The board after the piece has become part of it and full rows are gone; and how many were full."""
    rows = list(board)
    for i, cells in enumerate(piece.shape):
        rows[piece.row + i] |= cells << piece.column
    full = (1 << columns) - 1
    kept = [row for row in rows if row != full]
    lines = len(rows) - len(kept)
    return (0,) * lines + tuple(kept), lines


@lru_cache(maxsize=50_000)
def landings(board: Board, rules: Rules, piece: Piece) -> tuple[tuple[tuple[str, ...], Board, int], ...]:
    """Every board the piece can lead to: the fewest moves to it, the board after clearing, the lines cleared."""
    queue: list[tuple[Piece, tuple[str, ...]]] = [(piece, ())]
    seen = {piece}
    found: dict[Board, tuple[tuple[str, ...], Board, int]] = {}
    for place, path in queue:  # The list grows while it is walked: breadth first.
        for move in rules.moves:
            ahead, landed = after_move(board, rules, place, move)
            if landed:
                after, lines = locked(board, rules.columns, ahead)
                found.setdefault(after, ((*path, move), after, lines))
            elif ahead not in seen:
                seen.add(ahead)
                queue.append((ahead, (*path, move)))
    return tuple(found.values())
