"""Sokoban levels as gym-sokoban 0.0.6 draws them (Schrader 2018, after Racanière et al. 2017, appendix A.2).

A random walk with a brush carves the room. Boxes begin on their targets, and a depth-first search backwards pulls them
off; the start is the state with the largest product of pulls made and cells that the boxes are away from their targets.
Masks are those of :mod:`rllib_lmgame.envs.games.grids.sokoban_rooms`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from rllib_lmgame.envs.games.grids.sokoban_rooms import TURN_PROBABILITY, directions, inner_cells, shift

MAX_STATES = 300_000
BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""Cells that are dug out, by row and column from where the walk is."""

STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def walked_room(rng: random.Random, height: int, width: int) -> int:
    """The free cells of a room; it makes the draws of gym-sokoban's ``room_topology_generation``."""
    (step,) = rng.sample(STEPS, 1)
    row, column = rng.randint(1, height - 1), rng.randint(1, width - 1)
    free = 0
    for _ in range(int(1.7 * (height + width))):
        if rng.random() < TURN_PROBABILITY:
            (step,) = rng.sample(STEPS, 1)
        row, column = max(min(row + step[0], height - 2), 1), max(min(column + step[1], width - 2), 1)
        (brush,) = rng.sample(BRUSHES, 1)
        for down, right in brush:
            free |= 1 << ((row + down) * width + column + right)
    return free & inner_cells(height, width)


def pulled_apart(free: int, targets: Sequence[int], player: int, width: int, depth: int) -> tuple[int, int] | None:
    """Boxes and player of the start, or ``None`` if no box comes off its target.

    Args:
        free: Mask of the cells that are not wall.
        targets: Mask of each target.
        player: Where the search begins.
        width: Columns of the room.
        depth: Moves that are walked backwards at most.
    """
    on_targets = sum(targets)
    best, best_score = None, 0
    seen: set[tuple[int, int, int]] = set()
    # Boxes in the order of their targets, player, mask of the boxes never pulled, pulls made, moves left.
    stack = [(tuple(targets), player, on_targets, 0, depth - 1)]
    while stack:
        boxes, player, unmoved, pulls, left = stack.pop()
        mask = sum(boxes)
        if left <= 0 or len(seen) >= MAX_STATES or (mask, player, unmoved) in seen:
            continue
        seen.add((mask, player, unmoved))
        if pulls and not on_targets & (mask | player):
            score = pulls * sum(_apart(box, target, width) for box, target in zip(boxes, targets, strict=True))
            if score > best_score:
                best, best_score = (mask, player), score
        pulled, walked = [], []
        for step in directions(width).values():
            ahead, behind = shift(player, step), shift(player, -step)
            if not ahead & free & ~mask:
                continue
            if behind & mask:
                moved = tuple(player if box == behind else box for box in boxes)
                pulled.append((moved, ahead, unmoved & ~behind, pulls + 1, left - 1))
                walked.append((boxes, ahead, unmoved, pulls, left - 1))
            else:
                pulled.append((boxes, ahead, unmoved, pulls, left - 1))
        stack += reversed(pulled + walked)  # The first one is looked at first, with all that follows from it.
    return best


def _apart(box: int, target: int, width: int) -> int:
    """Cells between two masks of one cell, along rows and columns."""
    one, other = divmod(box.bit_length() - 1, width), divmod(target.bit_length() - 1, width)
    return abs(one[0] - other[0]) + abs(one[1] - other[1])
