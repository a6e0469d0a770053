"""Which values of schedules may come together, for checks before a run."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.settings.schedules import COUNTERS, TYPES, Point, ScheduleOptions, interpolate, nearest_whole, typed

MOST = 1024
"""Combinations of values that are looked at, if nobody says more."""


def occurring(
    schedules: Mapping[str, ScheduleOptions], whole: Collection[str] = (), most: int = MOST
) -> list[dict[str, float]]:
    """Value combinations that schedules may produce, to check options that limit each other.

    Schedules that follow the same number go together: every point and stage, and every change of a whole number.
    Others are combined in all ways. Above ``most`` combinations, a sample with the extremes is taken, and then each
    schedule alone with the others at their beginnings (again at most ``most``).

    Args:
        whole: Keys whose values are whole numbers.
    """
    found = [_along(group, whole, most) for group in in_lockstep(schedules)]
    if math.prod(map(len, found)) <= most:
        return [_joined(parts) for parts in itertools.product(*found)]
    each = max(2, int(most ** (1 / len(found))))
    together = itertools.islice(itertools.product(*(_fewer(along, each) for along in found)), most)
    begin = _joined(along[0] for along in found)
    alone = [_fewer(along, share) for along, share in zip(found, _shares(map(len, found), most), strict=True)]
    return [*map(_joined, together), *(begin | values for along in alone for values in along)]


def in_lockstep(schedules: Mapping[str, ScheduleOptions]) -> list[dict[str, ScheduleOptions]]:
    """Schedules by those that go on together."""
    groups: dict[tuple[Any, ...], dict[str, ScheduleOptions]] = {}
    for key, options in schedules.items():
        groups.setdefault(options.lockstep, {})[key] = options
    return list(groups.values())


def _joined(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    return dict(itertools.chain(*(part.items() for part in parts)))


def _fewer(along: Sequence[dict[str, float]], most: int) -> list[dict[str, float]]:
    """At most ``most``: first the extremes of each key, since limits are one-sided, then an even sample."""
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
    """Where to look at schedules of one number: at every jump, line end and (at most ``most``) integer change."""
    counts = next(iter(group.values())).by in COUNTERS
    lines = [
        _Line(first, second, position, counts)
        for key, options in group.items()
        if key in whole and (position := TYPES[options.type].position) is not None
        for first, second in itertools.pairwise(options.points or ())
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
    """Whether a value along points jumps."""
    points = options.points or []
    return TYPES[options.type].position is None or any(
        left[0] == right[0] for left, right in itertools.pairwise(points)
    )


@dataclass(frozen=True)
class _Line:
    """Between two points of an option that is a whole number.

    Attributes:
        reached: Where a value between the two is reached (:class:`~rllib_lmgame.settings.schedules.Way`).
        counts: The schedule follows a counter.
    """

    first: Point
    second: Point
    reached: Callable[[Point, Point, float], float]
    counts: bool

    @property
    def changes(self) -> range:
        """Whole numbers around each change, which is half-way; all positions of a counter that has fewer of them."""
        if self._by_position:
            return range(math.ceil(self.first[0]), math.floor(self.second[0]) + 1)
        return range(*sorted((nearest_whole(self.first[1]), nearest_whole(self.second[1]))))

    def position(self, change: int) -> float:
        """Where one of :attr:`changes` is."""
        if self._by_position:
            return change
        return self.reached(self.first, self.second, change + 0.5)

    @property
    def _by_position(self) -> bool:
        (left, before), (right, after) = self.first, self.second
        return self.counts and right - left <= abs(nearest_whole(after) - nearest_whole(before))
