"""The expert of 2048: expectimax over batches of boards.

A board is a whole number of 64 bits, four for each cell: the power of two of its tile, 0 where there is none. So a row
is a number of 16 bits, and what a move makes of it, and how good it is, stand in tables of 65,536 entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Boards = NDArray[np.uint64]

MOVES = ("Up", "Right", "Down", "Left")

DEEP_BELOW = 6
"""With fewer empty cells than this, the search looks at two tiles to come instead of one."""

LOST_PENALTY, EMPTY_WEIGHT, PAIR_WEIGHT, ORDER_WEIGHT, SUM_WEIGHT = 200_000.0, 270.0, 700.0, 47.0, 11.0
ORDER_POWER, SUM_POWER = 4.0, 3.5
"""Weights of a row's features, those of Robert Xiao's player (github.com/nneonneo/2048-ai): empty cells, equal
neighbours, how far the tiles are from rising or falling along the row, and many small tiles instead of a large one."""


class Tables(NamedTuple):
    """By row, ``[65536]``: the row after a move to the left and to the right, and how good it is."""

    left: NDArray[np.uint16]
    right: NDArray[np.uint16]
    value: NDArray[np.float64]


@cache
def tables() -> Tables:
    """Made when they are first asked for, in some 50 ms."""
    shifts = np.arange(0, 16, 4)
    cells = np.arange(1 << 16)[:, None] >> shifts & 15
    left = _packed(cells)
    mirrored = (cells[:, ::-1] << shifts).sum(axis=1)
    right = (_unpacked(left[mirrored])[:, ::-1] << shifts).sum(axis=1)
    powers = cells.astype(float) ** ORDER_POWER
    steps = np.diff(powers, axis=1)
    disorder = np.minimum(np.maximum(steps, 0).sum(axis=1), np.maximum(-steps, 0).sum(axis=1))
    pairs = ((cells[:, 1:] == cells[:, :-1]) & (cells[:, 1:] > 0)).sum(axis=1)
    value = LOST_PENALTY + EMPTY_WEIGHT * (cells == 0).sum(axis=1) + PAIR_WEIGHT * pairs
    value = value - ORDER_WEIGHT * disorder - SUM_WEIGHT * (cells.astype(float) ** SUM_POWER).sum(axis=1)
    return Tables(left.astype("<u2"), right.astype("<u2"), value)


def _unpacked(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The powers in rows, ``[rows, 4]``."""
    return rows[:, None] >> np.arange(0, 16, 4) & 15


def _packed(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows that a move to the left makes of ``cells``, ``[rows, 4]``. Two tiles of 32,768 stay one of them."""
    cells = _together(cells)
    for i in range(3):
        same = (cells[:, i] == cells[:, i + 1]) & (cells[:, i] > 0)
        cells[same, i] = np.minimum(cells[same, i] + 1, 15)
        cells[same, i + 1] = 0
    return (_together(cells) << np.arange(0, 16, 4)).sum(axis=1)


def _together(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """The cells of each row with the empty ones last."""
    return np.take_along_axis(cells, np.argsort(cells == 0, axis=1, kind="stable"), axis=1)


def rows_of(boards: Boards) -> NDArray[np.uint16]:
    """The rows of boards, ``[boards, 4]``."""
    return boards.view("<u2").reshape(-1, 4)


def transposed(boards: Boards) -> Boards:
    """Rows and columns exchanged: pairs of cells, then pairs of pairs."""
    for shift, kept, up in ((12, 0xF0F00F0FF0F00F0F, 0x0000F0F00000F0F0), (24, 0xFF00FF0000FF00FF, 0x00000000FF00FF00)):
        down = up << shift
        boards = (
            boards & np.uint64(kept)
            | (boards & np.uint64(up)) << np.uint64(shift)
            | (boards & np.uint64(down)) >> np.uint64(shift)
        )
    return boards


def moved(boards: Boards) -> Boards:
    """Boards after each of :data:`MOVES`, ``[4, boards]``; one that is as before could not be moved so."""
    known = tables()
    lying, standing = rows_of(boards), rows_of(transposed(boards))
    after = [known.left[standing], known.right[lying], known.right[standing], known.left[lying]]
    found = np.stack([rows.reshape(-1).view("<u8") for rows in after])
    found[::2] = transposed(found[::2])
    return found


def judged(boards: Boards) -> NDArray[np.float64]:
    """How good boards are, by their rows and columns, ``[boards]``."""
    value = tables().value
    return value[rows_of(boards)].sum(axis=1) + value[rows_of(transposed(boards))].sum(axis=1)


def values(boards: Boards, tiles: int) -> NDArray[np.float64]:
    """What each move is worth, ``[4, boards]``, 0 where it cannot be made.

    Args:
        boards: Boards to move on.
        tiles: Tiles to come that are looked at.
    """
    after = moved(boards)
    legal = after != boards
    worth = np.zeros(after.shape)
    worth[legal] = expected(after[legal], tiles) if tiles else judged(after[legal])
    return worth


def expected(boards: Boards, tiles: int) -> NDArray[np.float64]:
    """What boards are worth on which a tile appears, ``[boards]``: the mean over cells, and over 2 (.9) and 4 (.1)."""
    shifts = np.arange(0, 64, 4, dtype=np.uint64)
    board, cell = np.nonzero(boards[:, None] >> shifts & np.uint64(15) == 0)
    ones, places = np.uint64(1) << shifts[cell], boards[board]
    filled, inverse = np.unique(np.concatenate([places | ones, places | ones << np.uint64(1)]), return_inverse=True)
    best = values(filled, tiles - 1).max(axis=0)[inverse]
    mean = 0.9 * best[: len(board)] + 0.1 * best[len(board) :]
    return np.bincount(board, mean, len(boards)) / np.bincount(board, minlength=len(boards))


def best_move(board: Sequence[int]) -> str:
    """The move with the best prospects; the first one where nothing can move.

    Args:
        board: The 16 cells row by row, 0 where there is no tile.
    """
    packed = sum((tile.bit_length() - 1) << 4 * cell for cell, tile in enumerate(board) if tile)
    empty = sum(not tile for tile in board)
    worth = values(np.array([packed], dtype="<u8"), 2 if empty < DEEP_BELOW else 1)
    return MOVES[int(worth[:, 0].round(3).argmax())]  # Of moves that are alike the first, whatever the rounding.
