"""Players of Tetris: a search that clears a line with the fewest pieces, and a judge of boards for large ones."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rllib_lmgame.envs.games.grids.tetris.board import (
    DOWN,
    LEFT,
    RIGHT,
    ROTATE,
    TURNED,
    Board,
    Piece,
    Rules,
    after_move,
    fits,
    landings,
    locked,
)

MAX_BOARDS = 3_000
"""Boards a search looks at before it gives up."""

LANDING_WEIGHT, LINE_WEIGHT, ROW_CHANGE_WEIGHT, COLUMN_CHANGE_WEIGHT, HOLE_WEIGHT, WELL_WEIGHT = (
    -4.500, 3.418, -3.218, -9.349, -7.899, -3.386,
)  # fmt: skip
"""Weights of the features of Pierre Dellacherie's player as El-Tetris (Islam El-Ashi, 2011) has tuned them. They are
the height the piece comes to lie at, cleared lines, changes between empty and filled along the rows and down the
columns, holes, and the depths of wells summed."""


def first_line(board: Board, rules: Rules, pieces: Sequence[Piece]) -> tuple[list[str], int] | None:
    """Moves until a line is cleared, with the fewest pieces and then the fewest moves; and how many pieces that takes.

    Args:
        board: The locked cells.
        rules: Rules of the game.
        pieces: The falling piece where it is now, and those that will appear after it.

    Returns:
        ``None`` if no line can be cleared with these pieces (or ``MAX_BOARDS`` were looked at).
    """
    queue: list[tuple[int, int, Board]] = [(0, 0, board)]
    paths: dict[tuple[int, Board], tuple[str, ...]] = {(0, board): ()}
    done: set[tuple[int, Board]] = set()
    best: tuple[int, int, tuple[str, ...]] | None = None
    while queue and len(done) < MAX_BOARDS:
        used, cost, now = heapq.heappop(queue)
        if best and used >= best[0]:
            break
        if (used, now) in done or used == len(pieces) or not fits(now, rules.columns, pieces[used]):
            continue
        done.add((used, now))
        path = paths[used, now]
        for moves, after, lines in landings(now, rules, pieces[used]):
            longer = (*path, *moves)
            if lines and (best is None or len(longer) < best[1]):
                best = (used + 1, len(longer), longer)
            known = paths.get((used + 1, after))
            if not lines and (known is None or len(longer) < len(known)):
                paths[used + 1, after] = longer
                heapq.heappush(queue, (used + 1, cost + len(moves), after))
    return (list(best[2]), best[0]) if best else None


def best_drop(board: Board, rules: Rules, piece: Piece) -> list[str]:
    """Moves that turn, shift and drop the piece to the place with the best :func:`judged` board."""
    best: tuple[float, list[str]] | None = None
    turns = len(all_turns(piece)) if ROTATE in rules.moves else 1
    for turn in range(turns):
        for shift in range(-piece.column, rules.columns - piece.column):
            moves = [ROTATE] * turn + [LEFT if shift < 0 else RIGHT] * abs(shift)
            dropped = drop(board, rules, piece, moves)
            if dropped is not None:
                piece_at = dropped[0]
                after, lines = locked(board, rules.columns, piece_at)
                height = len(board) - piece_at.row - (len(piece_at.shape) + 1) / 2
                value = LANDING_WEIGHT * height + LINE_WEIGHT * lines + judged(after, rules.columns)
                if best is None or value > best[0]:
                    best = (value, dropped[1])
    return best[1] if best else [DOWN]


def all_turns(piece: Piece) -> list[tuple[int, ...]]:
    """The different shapes a piece can be turned to, as it is now first."""
    shapes = [piece.shape]
    while TURNED[shapes[-1]] != piece.shape:
        shapes.append(TURNED[shapes[-1]])
    return shapes


def drop(board: Board, rules: Rules, piece: Piece, moves: list[str]) -> tuple[Piece, list[str]] | None:
    """Where the piece lands after ``moves`` and as many ``Down`` as it takes, and all moves; ``None`` if
    one has no effect.
    """
    landed = False
    for move in moves:
        ahead, landed = after_move(board, rules, piece, move)
        if landed or (ahead.column, ahead.shape) == (piece.column, piece.shape):
            return None
        piece = ahead
    falls = 0
    while not landed:
        piece, landed = after_move(board, rules, piece, DOWN)
        falls += 1
    return piece, moves + [DOWN] * falls


def judged(board: Board, columns: int) -> float:
    """How good a board is: even, without holes and without wells."""
    full = (1 << columns) - 1
    covered = above = row_changes = column_changes = holes = wells = 0
    depths = [0] * columns
    for row in board:
        walled = row << 1 | 1 | 1 << columns + 1  # The walls count as filled.
        row_changes += ((walled ^ walled >> 1) & (full << 1 | 1)).bit_count()
        column_changes += (row ^ above).bit_count()
        holes += (covered & ~row).bit_count()
        well = ~row & walled & walled >> 2 & ~covered & full
        for column in range(columns):
            depths[column] = depths[column] + 1 if well >> column & 1 else 0
            wells += depths[column]
        covered |= row
        above = row
    column_changes += (full ^ above).bit_count()  # So does the floor.
    return (
        ROW_CHANGE_WEIGHT * row_changes
        + COLUMN_CHANGE_WEIGHT * column_changes
        + HOLE_WEIGHT * holes
        + WELL_WEIGHT * wells
    )
