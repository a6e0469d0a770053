"""Players of Tetris: a search that clears a line with the fewest pieces, and a judge of boards for large ones."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rllib_lmgame.envs.tetris.board import DOWN, LEFT, RIGHT, ROTATE, TURNED, Board, Piece, Rules, after_move, fits, landings, locked

MAX_BOARDS = 3_000
"""Boards a search looks at before it gives up."""

HEIGHT_WEIGHT, HOLE_WEIGHT, STEP_WEIGHT, LINE_WEIGHT = -0.51, -0.36, -0.18, 0.76
"""Weights of the summed heights of the columns, of holes, of steps between neighbouring columns and of cleared lines: the ratios
that evolutionary searches for linear judges of Tetris boards are known to settle on."""


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
                after, lines = locked(board, rules.columns, dropped[0])
                value = judged(after, rules.columns, lines)
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
    """Where the piece lands after ``moves`` and as many ``Down`` as it takes, and all moves; ``None`` if one has no effect."""
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


def judged(board: Board, columns: int, lines: int) -> float:
    """How good a board is: low, even and without holes."""
    neighbours = (1 << columns - 1) - 1
    covered = heights = holes = steps = 0
    for row in board:
        holes += (covered & ~row).bit_count()
        covered |= row
        heights += covered.bit_count()
        steps += ((covered ^ covered >> 1) & neighbours).bit_count()
    return HEIGHT_WEIGHT * heights + HOLE_WEIGHT * holes + STEP_WEIGHT * steps + LINE_WEIGHT * lines
