"""Which values of schedules may come together, for checks before a run."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.schedules import COUNTERS, LINEAR, STEP, ScheduleOptions, interpolate, nearest_whole, typed

MOST = 1024
"""Combinations of values that are looked at, if nobody says more."""


def occurring(
    schedules: Mapping[str, ScheduleOptions], whole: Collection[str] = (), most: int = MOST
) -> list[dict[str, float]]:
    """Values that may come together, for checks of options that share a constraint.

    Schedules that follow the same number are taken together as they go along: at every point and stage, and wherever a
    whole number changes. Others are taken in all combinations. Where these are more than ``most``, as many of the
    least, the greatest and some between them are, and then each schedule for itself, beside the beginnings of the
    others, these too no more than ``most``.

    Args:
        schedules: By key; those that share a constraint.
        whole: Keys whose values are whole numbers.
        most: Combinations, and whole numbers between the points of schedules that go together.
    """
    axes: dict[tuple[Any, ...], dict[str, ScheduleOptions]] = {}
    for key, options in schedules.items():
        axes.setdefault(options.lockstep, {})[key] = options
    found = [_along(group, whole, most) for group in axes.values()]
    if math.prod(map(len, found)) <= most:
        return [_joined(parts) for parts in itertools.product(*found)]
    each = max(2, int(most ** (1 / len(found))))
    together = itertools.islice(itertools.product(*(_fewer(along, each) for along in found)), most)
    begin = _joined(along[0] for along in found)
    alone = [_fewer(along, share) for along, share in zip(found, _shares(map(len, found), most), strict=True)]
    return [*map(_joined, together), *(begin | values for along in alone for values in along)]


def _joined(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    return dict(itertools.chain(*(part.items() for part in parts)))


def _fewer(along: Sequence[dict[str, float]], most: int) -> list[dict[str, float]]:
    """At most so many: first those where a key has its least or its greatest value, then evenly from beginning to end.

    Options limit each other from one side, so that the ends show what does not fit.
    """
    if len(along) <= most:
        return list(along)
    ends = [pick(along, key=operator.itemgetter(key)) for key in along[0] for pick in (min, max)]
    return _distinct([*ends, *_evenly(along, most)])[:most]


def _evenly(values: Any, most: int) -> Any:
    """At most so many of a list or a range, from beginning to end."""
    count = values.stop - values.start if isinstance(values, range) else len(values)  # A range may be of any length.
    return values[:: -(-count // most)] if most and count else values[:0]


def _shares(wanted: Iterable[int], most: int) -> list[int]:
    """How many of ``most`` each gets: all that it wants, or as many as the others; who wants less leaves the rest."""
    wanted = list(wanted)
    shares, left = [0] * len(wanted), most
    for rank, number in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[number] = min(wanted[number], left // (len(wanted) - rank))
        left -= shares[number]
    return shares


def _distinct(found: Iterable[dict[str, float]]) -> list[dict[str, float]]:
    return list({tuple(values.items()): values for values in found}.values())


def _along(group: Mapping[str, ScheduleOptions], whole: Collection[str], most: int) -> list[dict[str, float]]:
    """Values of schedules that go together."""
    first = next(iter(group.values()))
    if first.points is None:
        stages = range(len(first.values or ()))
        return _distinct(
            {key: typed(key, (options.values or [])[stage], whole) for key, options in group.items()}
            for stage in stages
        )
    return _distinct(
        {key: typed(key, interpolate(options.points or [], at, options.type), whole) for key, options in group.items()}
        for at in _positions(group, whole, most)
    )


def _positions(group: Mapping[str, ScheduleOptions], whole: Collection[str], most: int) -> list[float]:
    """Where schedules along points, which follow one number, are looked at so that nothing that comes about is missed:
    where a value jumps or a straight line ends, and before, between and behind these; of more than ``most`` changes of
    whole numbers between points, some.
    """
    counts = next(iter(group.values())).by in COUNTERS
    lines = [
        _Line(left, before, right, after, counts)
        for key, options in group.items()
        if key in whole and options.type == LINEAR
        for (left, before), (right, after) in itertools.pairwise(options.points or ())
    ]
    shares = _shares((line.changes.stop - line.changes.start for line in lines), most)
    changes = {at for options in group.values() for at, _ in options.points or ()}
    changes |= {
        line.position(change)
        for line, share in zip(lines, shares, strict=True)
        for change in _evenly(line.changes, share)
    }
    if any(key in whole or _jumps(options) for key, options in group.items()):
        if counts:  # A counter is a whole number.
            changes = {near for at in changes for near in (math.ceil(at) - 1, math.ceil(at), math.floor(at) + 1)}
        else:
            between = {left / 2 + right / 2 for left, right in itertools.pairwise(sorted(changes))}
            changes = changes | between | {math.nextafter(at, -math.inf) for at in changes}
    return sorted({max(at, 0) for at in changes} if counts else changes)


def _jumps(options: ScheduleOptions) -> bool:
    """Whether a value along points does not always go in straight lines."""
    points = options.points or []
    return options.type == STEP or any(left[0] == right[0] for left, right in itertools.pairwise(points))


@dataclass(frozen=True)
class _Line:
    """A straight line between two points, of an option that is a whole number.

    Attributes:
        left, before: One point.
        right, after: The other one.
        counts: What the option follows is a counter.
    """

    left: float
    before: float
    right: float
    after: float
    counts: bool

    @property
    def changes(self) -> range:
        """The whole numbers that become others, which is half-way; of a counter that has fewer positions than the
        option has values, all positions.
        """
        if self._by_position:
            return range(math.ceil(self.left), math.floor(self.right) + 1)
        return range(*sorted((nearest_whole(self.before), nearest_whole(self.after))))

    def position(self, change: int) -> float:
        """Where one of :attr:`changes` is."""
        if self._by_position:
            return change
        share = (change / 2 + 0.25 - self.before / 2) / (self.after / 2 - self.before / 2)
        return self.left * (1 - share) + self.right * share

    @property
    def _by_position(self) -> bool:
        return self.counts and self.right - self.left <= abs(nearest_whole(self.after) - nearest_whole(self.before))
