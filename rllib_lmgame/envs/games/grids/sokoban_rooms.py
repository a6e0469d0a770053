"""Sokoban rooms and distances, as bit masks.

Cell ``row * width + column`` of a room is bit ``1 << cell`` of a mask. The border is always wall, so shifting a mask
by one cell never wraps around.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

TURN_PROBABILITY = 0.35


@dataclass(frozen=True)
class Level:
    """A room with its boxes, targets and player.

    Attributes:
        height: Rows, border included.
        width: Columns, border included.
        free: Mask of the cells that are not wall.
        targets: Mask of the targets.
        boxes: Mask of the boxes.
        player: Mask with the player's cell.
        distance: Moves of the shortest solution.
    """

    height: int
    width: int
    free: int
    targets: int
    boxes: int
    player: int
    distance: int


def shift(mask: int, by: int) -> int:
    """``mask`` moved by ``by`` cells."""
    return mask << by if by >= 0 else mask >> -by


def directions(width: int) -> dict[str, int]:
    """Cells a move goes."""
    return {"Up": -width, "Down": width, "Left": -1, "Right": 1}


def bits(mask: int) -> list[int]:
    """The single bits of ``mask``, lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low)
        mask ^= low
    return found


def inner_cells(height: int, width: int) -> int:
    """Mask of all cells but the border."""
    row = ((1 << (width - 2)) - 1) << 1
    mask = 0
    for r in range(1, height - 1):
        mask |= row << (r * width)
    return mask


def carve(rng: random.Random, height: int, width: int) -> int:
    """A connected room dug by a random walk with a brush of one to four cells; returns the free cells."""
    inner = inner_cells(height, width)
    brushes = (1, 1 | 1 << 1, 1 | 1 << width, 1 | 1 << 1 | 1 << width, 1 | 1 << 1 | 1 << width | 1 << (width + 1))
    steps = tuple(directions(width).values())
    cell = rng.randrange(1, height - 1) * width + rng.randrange(1, width - 1)
    step = steps[int(rng.random() * 4)]
    free = 1 << cell
    for _ in range(max(20, (height - 2) * (width - 2))):
        if rng.random() < TURN_PROBABILITY:
            step = steps[int(rng.random() * 4)]
        if inner >> (cell + step) & 1:
            cell += step
        free |= brushes[int(rng.random() * 5)] << cell
    return free & inner


class Distances:
    """Moves from every state to the solved one, found backwards: walking back and pulling boxes off the targets.

    ``layers[d]`` maps a mask of boxes to the mask of player cells from which the shortest solution has ``d`` moves.
    Layers grow on demand, so a generator that only needs short solutions pays for those alone.
    """

    def __init__(self, free: int, targets: int, width: int) -> None:
        self.free = free
        self.width = width
        self._steps = tuple(directions(width).values())
        solved = {targets: free & ~targets}
        self.layers: list[dict[int, int]] = [solved]
        self._seen = dict(solved)

    def grow(self) -> bool:
        """Add the next layer; false if every state that can be solved is known."""
        layer: dict[int, int] = {}
        free, width, seen = self.free, self.width, self._seen
        for boxes, players in self.layers[-1].items():
            open_cells = free & ~boxes
            walked = (players << 1 | players >> 1 | players << width | players >> width) & open_cells
            layer[boxes] = layer.get(boxes, 0) | walked
            for step in self._steps:
                pullers = players & shift(boxes, -step) & shift(open_cells, step)
                while pullers:
                    low = pullers & -pullers
                    pullers ^= low
                    pulled = boxes ^ low ^ shift(low, step)
                    layer[pulled] = layer.get(pulled, 0) | shift(low, -step)
        fresh = {}
        for boxes, players in layer.items():
            players &= ~seen.get(boxes, 0)
            if players:
                fresh[boxes] = players
                seen[boxes] = seen.get(boxes, 0) | players
        if not fresh:
            return False
        self.layers.append(fresh)
        return True

    def grow_to(self, distance: int) -> int:
        """Know all states up to ``distance`` moves; returns the largest distance known."""
        while len(self.layers) <= distance and self.grow():
            pass
        return len(self.layers) - 1

    def known(self, boxes: int, player: int) -> int | None:
        """Moves of the shortest solution from a state of the layers so far."""
        return next((d for d, layer in enumerate(self.layers) if layer.get(boxes, 0) & player), None)

    def of(self, boxes: int, player: int) -> int | None:
        """Moves of the shortest solution from a state, or ``None`` if it cannot be solved."""
        distance = 0
        while True:
            if distance == len(self.layers) and not self.grow():
                return None
            if self.layers[distance].get(boxes, 0) & player:
                return distance
            distance += 1

    def draw(self, rng: random.Random, distance: int) -> tuple[int, int]:
        """A state ``distance`` moves from the solution, uniformly: boxes and player."""
        layer = self.layers[distance]
        pick = rng.randrange(sum(players.bit_count() for players in layer.values()))
        for boxes, players in layer.items():
            count = players.bit_count()
            if pick < count:
                return boxes, bits(players)[pick]
            pick -= count
        raise AssertionError("the counts of a layer do not add up")


def move(free: int, boxes: int, player: int, step: int) -> tuple[int, int] | None:
    """Boxes and player after a move by ``step`` cells, or ``None`` if a wall or a box is in the way."""
    ahead = shift(player, step)
    if not ahead & free:
        return None
    if not ahead & boxes:
        return boxes, ahead
    beyond = shift(ahead, step)
    if not beyond & free or beyond & boxes:
        return None
    return boxes ^ ahead ^ beyond, ahead
