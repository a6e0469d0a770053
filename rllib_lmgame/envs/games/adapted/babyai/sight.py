"""What the agent of BabyAI sees, in its own terms: steps ahead and steps to the right; and the ways it can walk
there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
"""Actions of the engine."""

HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""Steps (ahead, right) of the headings: as now, to the right, back, to the left."""


class Pose(NamedTuple):
    """A place and a heading, relative to where the agent stands now and looks now."""

    ahead: int
    right: int
    heading: int


HERE = Pose(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Seen:
    """An object in sight.

    Attributes:
        name: Colour, kind and number, ``red ball 1``; the nearest of its colour and kind has number 1.
        thing: The engine's object.
        ahead: Steps in front of the agent.
        right: Steps to the right (negative: to the left).
    """

    name: str
    thing: Any
    ahead: int
    right: int


class Sight:
    """The agent's field of view, 7x7 cells with the agent in the middle of the lowest row.

    Args:
        env: The engine's environment, unwrapped.
    """

    def __init__(self, env: Any) -> None:
        grid, visible = env.gen_obs_grid()
        self._reach = env.agent_view_size - 1
        self._side = env.agent_view_size // 2
        self._cells: dict[tuple[int, int], Any] = {}
        for column in range(env.agent_view_size):
            for row in range(env.agent_view_size):
                if visible[column, row]:
                    self._cells[self._reach - row, column - self._side] = grid.get(column, row)
        self._cells[0, 0] = env.grid.get(*env.agent_pos)  # The engine draws what is carried here.
        self.objects = list(self._named())
        self._ways: dict[Pose, tuple[Pose, int] | None] | None = None

    def at(self, ahead: int, right: int) -> Any:
        """The object in a cell: ``None`` for an empty one, and for one that is out of sight."""
        return self._cells.get((ahead, right))

    def can_enter(self, ahead: int, right: int) -> bool:
        """Whether a cell is in sight and free to walk onto."""
        if (ahead, right) not in self._cells:
            return False
        thing = self._cells[ahead, right]
        return thing is None or thing.can_overlap()

    def wall(self, heading: int) -> int | None:
        """Steps to the wall in a heading, or ``None`` if none is in sight or something else stands before it."""
        ahead, right = HEADINGS[heading]
        steps = 1
        while (cell := (ahead * steps, right * steps)) in self._cells:
            thing = self._cells[cell]
            if thing is not None and not (thing.type == "door" and thing.is_open):
                return steps if thing.type == "wall" else None
            steps += 1
        return None

    def way_to_face(self, ahead: int, right: int) -> tuple[list[int], Pose] | None:
        """Fewest actions after which the agent stands before a cell and looks at it, and its pose then."""
        faced = [Pose(ahead - dx, right - dy, heading) for heading, (dx, dy) in enumerate(HEADINGS)]
        ways = [(self._way(pose), pose) for pose in faced if pose in self._reachable]
        return min(ways, key=lambda way: len(way[0])) if ways else None

    def _named(self) -> Iterator[Seen]:
        places = [place for place, thing in self._cells.items() if is_object(thing) and place != (0, 0)]
        counts: dict[str, int] = {}
        for ahead, right in sorted(places, key=lambda place: (abs(place[0]) + abs(place[1]), place)):
            thing = self._cells[ahead, right]
            kind = f"{thing.color} {thing.type}"
            counts[kind] = counts.get(kind, 0) + 1
            yield Seen(f"{kind} {counts[kind]}", thing, ahead, right)

    @property
    def _reachable(self) -> dict[Pose, tuple[Pose, int] | None]:
        """All poses that can be reached through cells in sight, each with the one before and the action between."""
        if self._ways is None:
            self._ways = {HERE: None}
            queue = deque([HERE])
            while queue:
                pose = queue.popleft()
                for ahead, action in self._steps(pose):
                    if ahead not in self._ways:
                        self._ways[ahead] = (pose, action)
                        queue.append(ahead)
        return self._ways

    def _way(self, pose: Pose) -> list[int]:
        actions = []
        while (before := self._reachable[pose]) is not None:
            actions.append(before[1])
            pose = before[0]
        return actions[::-1]

    def _steps(self, pose: Pose) -> Iterator[tuple[Pose, int]]:
        """Where one action leads from a pose, walking first."""
        cell = (pose.ahead + HEADINGS[pose.heading][0], pose.right + HEADINGS[pose.heading][1])
        if self.can_enter(*cell):
            yield Pose(*cell, pose.heading), FORWARD
        yield Pose(pose.ahead, pose.right, (pose.heading + 3) % 4), LEFT
        yield Pose(pose.ahead, pose.right, (pose.heading + 1) % 4), RIGHT


def is_object(thing: Any) -> bool:
    """Whether something in a cell is told as an object."""
    return thing is not None and thing.type in ("ball", "box", "key", "door")
