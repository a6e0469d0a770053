"""Perfect play of king and queen, or king and rook, against a king: built by retrograde analysis in a second or two.

A table holds two arrays of shape ``[64, 64, 64]`` over (white king, white piece, black king), with squares numbered a1
= 0 to h8 = 63. They say the plies to mate under best play of both sides: one with White to move, one with Black. White
always is the side with the piece.

The tests check the longest mates: 10 moves with the queen, 16 with the rook. For the rook they check the number of
positions of every depth, as given by the data set "Chess (King-Rook vs. King)" of M. Bain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Plies = NDArray[np.uint8]
NO_MATE = 255
"""Entry of a position that is not won, or not possible."""

STRAIGHT = ((1, 0), (-1, 0), (0, 1), (0, -1))
DIAGONAL = ((1, 1), (1, -1), (-1, 1), (-1, -1))
DIRECTIONS = {"rook": STRAIGHT, "queen": STRAIGHT + DIAGONAL}


@dataclass(frozen=True)
class Table:
    """Plies to mate of all positions with one kind of piece.

    Attributes:
        white: White to move, [64, 64, 64] over (white king, piece, black king).
        black: Black to move; 0 is mate.
        legal_white: Positions that are possible with White to move.
        legal_black: Positions that are possible with Black to move.
    """

    white: Plies
    black: Plies
    legal_white: NDArray[np.bool_]
    legal_black: NDArray[np.bool_]


@cache
def table(piece: str) -> Table:
    """The table for ``"queen"`` or ``"rook"``; built once per process."""
    attack = _attacks(piece)
    kings_apart = ~_adjacent()
    np.fill_diagonal(kings_apart, False)
    squares = np.arange(64)
    distinct = (squares[:, None, None] != squares[None, :, None]) & (squares[None, :, None] != squares[None, None, :])
    legal_black = distinct & kings_apart[:, None, :]
    legal_white = legal_black & ~attack
    open_squares = _open_squares(attack, kings_apart)
    has_moves, takes = _black_options(open_squares)
    black = np.full((64, 64, 64), NO_MATE, np.uint8)
    black[legal_black & ~has_moves & attack] = 0
    white = np.full_like(black, NO_MATE)
    while True:
        white = np.where(legal_white, _one_more(_best_for_white(black, DIRECTIONS[piece])), NO_MATE).astype(np.uint8)
        worst = _worst_for_black(white, open_squares)
        lost = legal_black & has_moves & ~takes & (worst != NO_MATE)
        after = np.where(lost, _one_more(worst), black).astype(np.uint8)
        if np.array_equal(after, black):
            return Table(white, black, legal_white, legal_black)
        black = after


@cache
def _neighbours() -> tuple[tuple[int, ...], ...]:
    """Squares a king reaches from each square."""
    return tuple(
        tuple(s for dx, dy in STRAIGHT + DIAGONAL if (s := _shifted(square, dx, dy)) is not None)
        for square in range(64)
    )


def _shifted(square: int, files: int, ranks: int) -> int | None:
    file, rank = square % 8 + files, square // 8 + ranks
    return 8 * rank + file if 0 <= file < 8 and 0 <= rank < 8 else None


def _ray(square: int, files: int, ranks: int) -> list[int]:
    ray: list[int] = []
    ahead = _shifted(square, files, ranks)
    while ahead is not None:
        ray.append(ahead)
        ahead = _shifted(ahead, files, ranks)
    return ray


def _adjacent() -> NDArray[np.bool_]:
    adjacent = np.zeros((64, 64), bool)
    for square, near in enumerate(_neighbours()):
        adjacent[square, list(near)] = True
    return adjacent


def _attacks(piece: str) -> NDArray[np.bool_]:
    """Whether the piece attacks a square past the white king, [white king, piece, square]; a black king on the way does
    not shield.
    """
    attack = np.zeros((64, 64, 64), bool)
    for square in range(64):
        for direction in DIRECTIONS[piece]:
            blocked = np.zeros(64, bool)
            for target in _ray(square, *direction):
                attack[:, square, target] = ~blocked
                blocked[target] = True
    return attack


def _open_squares(attack: NDArray[np.bool_], kings_apart: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Squares the black king may step on, [white king, piece, square]: the piece's own square too,
    unless it is protected.
    """
    piece_here = np.eye(64, dtype=bool)[None, :, :]
    return kings_apart[:, None, :] & (~attack | piece_here)


def _black_options(open_squares: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Per position: the black king can move; it can take the piece."""
    has_moves = np.zeros((64, 64, 64), bool)
    takes = np.zeros((64, 64, 64), bool)
    for king, near in enumerate(_neighbours()):
        has_moves[:, :, king] = open_squares[:, :, list(near)].any(axis=2)
        for square in near:
            takes[:, square, king] = open_squares[:, square, square]
    return has_moves, takes


def _one_more(plies: Plies) -> Plies:
    return np.where(plies == NO_MATE, NO_MATE, plies + np.uint8(1)).astype(np.uint8)


def _best_for_white(black: Plies, directions: tuple[tuple[int, int], ...]) -> Plies:
    """Fewest plies over the moves of the white king and the piece; positions that are not possible hold ``NO_MATE``."""
    best = np.stack([black[list(near)].min(axis=0) for near in _neighbours()])
    for square in range(64):
        for direction in directions:
            blocked = np.zeros((64, 64), bool)
            for target in _ray(square, *direction):
                blocked[target, :] = True
                blocked[:, target] = True
                best[:, square, :] = np.minimum(best[:, square, :], np.where(blocked, NO_MATE, black[:, target, :]))
    return best


def _worst_for_black(white: Plies, open_squares: NDArray[np.bool_]) -> Plies:
    """Most plies over the moves of the black king (0 without one); a move to a position that is not lost
    makes it ``NO_MATE``.
    """
    worst = np.zeros_like(white)
    for king, near in enumerate(_neighbours()):
        for square in near:
            after = np.where(open_squares[:, :, square], white[:, :, square], 0)
            worst[:, :, king] = np.maximum(worst[:, :, king], after)
    return worst
