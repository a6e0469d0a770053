"""Numbers that change during a run. Importing this loads neither Ray nor torch.

A schedule follows a number of the results: along points, or stage by stage. Everything follows from the results so far,
so that a resumed run goes on with the same values.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.schema import build, check_value, describe, limits, option

STEP, LINEAR = KINDS = ("step", "linear")

PPO_ITERATION, ENV_STEPS = "ppo_iteration", "env_steps"

_PATHS = {ENV_STEPS: "num_env_steps_sampled_lifetime"}
"""Names of our own for numbers of the results."""

_COUNTERS = (PPO_ITERATION, ENV_STEPS, *_PATHS.values())
"""What is 0 before the first result."""

_METRIC = re.compile(r"[\w.+-]+(/[\w.+-]+)*")
_MOST = 256
"""Combinations of values that are looked at before a run, and whole numbers between two points, if nobody says more."""

_DEEPEST = 8
"""More mappings than an option lies in."""

Points = Sequence[Sequence[float]]


def is_metric(value: Any) -> bool:
    """Whether ``value`` can be the name of a number in the results."""
    return isinstance(value, str) and _METRIC.fullmatch(value) is not None


@dataclass(frozen=True)
class ScheduleOptions:
    """One entry of ``schedules``: either ``points``, or ``values`` and ``above``."""

    by: str = option(
        PPO_ITERATION,
        "What it follows: `ppo_iteration` (PPO iterations before the present one), `env_steps` (steps of games played "
        "before it), or another number of the results as it was last reported, e.g. `env_runners/success_rate`.",
        stranger=is_metric,
    )
    points: list[list[float]] | None = option(
        None, "`[[at, value], ...]` with rising `at`: before the first point its value, behind the last one its value."
    )
    kind: str = option(
        LINEAR,
        "Between two points: `linear`, or the value of the former (`step`). An option that is a whole number takes the "
        "nearest one.",
        choices=KINDS,
    )
    values: list[float] | None = option(None, "Instead of `points`: the values of the stages, in order.")
    above: float | None = option(
        None,
        "With `values`: the next stage begins when the number has been above this in `iterations` results in a row; "
        "results without it do not count.",
    )
    below: float | None = option(
        None,
        "With `values`: the stage before comes back when the number has been below this in `iterations` results in a "
        "row. null: never back.",
    )
    iterations: int = option(1, "With `values`: how many results in a row it takes.", low=1)

    @property
    def highest(self) -> float:
        """The greatest of its values."""
        return max(self.values or (value for _, value in self.points or ()))

    @property
    def lockstep(self) -> tuple[Any, ...]:
        """Schedules that agree in this go from stage to stage, or from point to point, together."""
        if self.points is not None:
            return (self.by,)
        return (self.by, self.above, self.below, self.iterations, len(self.values or ()))


def read_schedules(value: Any, path: str) -> dict[str, ScheduleOptions]:
    """The ``schedules`` of a configuration: dotted key -> schedule; keys may be nested mappings as well.

    Raises:
        ConfigError: for what can be no schedule, or two of one option.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(path, f"expected a mapping from options to schedules, got {describe(value)}")
    found: dict[str, ScheduleOptions] = {}
    for key, options in _flat(value, path):
        if key in found:
            raise ConfigError(f"{path}.{key}", "stands there twice, as a dotted key and in nested mappings")
        found[key] = options
    return found


def _flat(value: Mapping[Any, Any], path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ScheduleOptions]]:
    """Dotted keys and schedules of nested mappings, which stand below the keys ``above``."""
    if len(above) > _DEEPEST:
        raise ConfigError(".".join((path, *above)), "no option lies so deep")
    for name, entry in value.items():
        if not isinstance(name, str):
            raise ConfigError(".".join((path, *above, str(name))), f"expected an option's name, got {describe(name)}")
        key = ".".join((*above, name))
        if isinstance(entry, ScheduleOptions):
            yield key, entry
        elif isinstance(entry, Mapping) and entry and all(isinstance(inner, Mapping) for inner in entry.values()):
            yield from _flat(entry, path, (*above, name))
        else:
            yield key, read_schedule(entry, f"{path}.{key}")


def read_schedule(value: Any, path: str) -> ScheduleOptions:
    """One schedule.

    Raises:
        ConfigError: for an unknown key, a wrong type, or keys that do not belong together.
    """
    options = build(ScheduleOptions, value, path)
    if not is_metric(options.by):
        raise ConfigError(f"{path}.by", f"expected the name of a number in the results, got {options.by!r}")
    if (options.points is None) == (options.values is None):
        raise ConfigError(path, "needs either `points` or `values`")
    if options.points is not None:
        check_points(options.points, f"{path}.points")
        _check_unset(
            options, ("above", "below", "iterations"), path, "has no effect with `points`; it belongs to `values`"
        )
        return options
    if not options.values:
        raise ConfigError(f"{path}.values", "needs at least one value")
    for number, stage in enumerate(options.values):
        check_value(stage, float, limits(), f"{path}.values[{number}]")
    _check_unset(options, ("kind",), path, "has no effect with `values`; it belongs to `points`")
    if options.above is None:
        raise ConfigError(path, "`values` needs `above`: when the next stage begins")
    if options.below is not None and options.below >= options.above:
        raise ConfigError(f"{path}.below", f"must be less than above={options.above:g}, got {options.below:g}")
    return options


def _check_unset(options: ScheduleOptions, keys: Iterable[str], path: str, why: str) -> None:
    for key in keys:
        if getattr(options, key) != getattr(ScheduleOptions, key):
            raise ConfigError(f"{path}.{key}", why)


def check_points(points: Points, path: str) -> None:
    """Raise :class:`ConfigError` unless ``points`` are pairs of finite numbers with rising first ones."""
    if not points:
        raise ConfigError(path, "needs at least one point")
    for number, point in enumerate(points):
        if len(point) != 2:
            raise ConfigError(f"{path}[{number}]", f"a point is [at, value], got {list(point)!r}")
        for part in point:
            check_value(part, float, limits(), f"{path}[{number}]")
        if number and point[0] < points[number - 1][0]:
            raise ConfigError(f"{path}[{number}]", f"{point[0]:g} comes before {points[number - 1][0]:g}")


def interpolate(points: Points, at: float, kind: str = LINEAR) -> float:
    """The value at a position; of two points at one position the second counts from there on."""
    if at < points[0][0]:
        return float(points[0][1])
    for (left, before), (right, after) in itertools.pairwise(points):
        if at < right:
            if kind == STEP:
                return float(before)
            value = (after - before) / (right - left) * (at - left) + before
            return float(min(max(value, min(before, after)), max(before, after)))
    return float(points[-1][1])


class Schedules:
    """The present values of all schedules.

    Args:
        schedules: By key.
        whole: Keys whose values are whole numbers.
    """

    def __init__(self, schedules: Mapping[str, ScheduleOptions], whole: Collection[str] = ()) -> None:
        self._schedules = dict(schedules)
        self._whole = frozenset(whole)
        self._seen: dict[str, float] = {}
        self._stages = {key: 0 for key, options in schedules.items() if options.values is not None}
        self._in_a_row = dict.fromkeys(self._stages, 0)

    def values(self) -> dict[str, float]:
        """Key -> value of the coming iteration."""
        return {key: self._typed(key, self._value(key, options)) for key, options in self._schedules.items()}

    def observe(self, result: Mapping[str, Any]) -> None:
        """An iteration is over, with this result.

        The counters are kept though no schedule follows them yet: one may be added when the run is resumed.
        """
        for path in {PPO_ITERATION, *map(_path, _PATHS), *(_path(options.by) for options in self._schedules.values())}:
            number = _number(result, path)
            if number is None:
                continue
            self._seen[path] = number
            for key in self._stages:
                if _path(self._schedules[key].by) == path:
                    self._count(key, number)

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"seen": dict(self._seen), "stages": dict(self._stages), "in_a_row": dict(self._in_a_row)}

    def set_state(self, state: Mapping[str, Any], counters: Mapping[str, float] | None = None) -> None:
        """Take over a state of :meth:`state`; stages that were none then begin, and those that are no more are left
        out.

        Args:
            state: The state; an empty one is of a run without schedules.
            counters: :data:`PPO_ITERATION` and :data:`ENV_STEPS` as they stand at that time. States of old hold only
                those that a schedule followed.
        """
        self._seen = {_path(by): float(number) for by, number in state.get("seen", {}).items()}
        for by, number in (counters or {}).items():
            self._seen[_path(by)] = max(self._seen.get(_path(by), 0.0), float(number))
        for key in self._stages:
            last = len(self._schedules[key].values or ()) - 1
            self._stages[key] = min(max(int(state.get("stages", {}).get(key, 0)), 0), last)
            self._in_a_row[key] = int(state.get("in_a_row", {}).get(key, 0))

    def _value(self, key: str, options: ScheduleOptions) -> float:
        if options.points is None:
            return (options.values or [0.0])[self._stages[key]]
        start = 0.0 if options.by in _COUNTERS else -math.inf
        return interpolate(options.points, self._seen.get(_path(options.by), start), options.kind)

    def _typed(self, key: str, value: float) -> float:
        return nearest_whole(value) if key in self._whole else float(value)

    def _count(self, key: str, number: float) -> None:
        """Results in a row, those below counted down; go on by a stage, or back, when they are enough."""
        options, row = self._schedules[key], self._in_a_row[key]
        if options.above is not None and number > options.above:
            row = max(row, 0) + 1
        elif options.below is not None and number < options.below:
            row = min(row, 0) - 1
        else:
            row = 0
        last = len(options.values or ()) - 1
        if abs(row) >= options.iterations:
            self._stages[key] = min(max(self._stages[key] + (1 if row > 0 else -1), 0), last)
            row = 0
        self._in_a_row[key] = row


def nearest_whole(value: float) -> int:
    """The nearest whole number; the higher one of two."""
    return math.floor(value + 0.5)


def occurring(
    schedules: Mapping[str, ScheduleOptions], whole: Collection[str] = (), most: int = _MOST
) -> list[dict[str, float]]:
    """Values that may come together, for checks of options that share a constraint.

    Schedules that follow the same number are taken together as they go along: at every point and stage, and wherever a
    whole number changes. Others are taken in all combinations. Where these are more than ``most``, as many of the
    least, the greatest and some between them are, and then each schedule for itself, beside the beginnings of the
    others.

    Args:
        schedules: By key; those that share a constraint.
        whole: Keys whose values are whole numbers.
        most: Combinations, and whole numbers between two points.
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
    return [*map(_joined, together), *(begin | values for along in found for values in along)]


def _joined(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    return dict(itertools.chain(*(part.items() for part in parts)))


def _fewer(along: Sequence[dict[str, float]], most: int) -> list[dict[str, float]]:
    """At most so many: first those where a key has its least or its greatest value, then evenly from beginning to end.

    Options limit each other from one side, so that the ends show what does not fit.
    """
    ends = [pick(along, key=operator.itemgetter(key)) for key in along[0] for pick in (min, max)]
    return _distinct([*ends, *along[:: math.ceil(len(along) / most)]])[:most]


def _distinct(found: Iterable[dict[str, float]]) -> list[dict[str, float]]:
    return list({tuple(values.items()): values for values in found}.values())


def _along(group: Mapping[str, ScheduleOptions], whole: Collection[str], most: int) -> list[dict[str, float]]:
    """Values of schedules that go together."""

    def typed(key: str, value: float) -> float:
        return nearest_whole(value) if key in whole else float(value)

    first = next(iter(group.values()))
    if first.points is None:
        stages = range(len(first.values or ()))
        found = [{key: typed(key, (options.values or [])[stage]) for key, options in group.items()} for stage in stages]
    else:
        found = [
            {key: typed(key, interpolate(options.points or [], at, options.kind)) for key, options in group.items()}
            for at in _positions(group, whole, most)
        ]
    return _distinct(found)


def _positions(group: Mapping[str, ScheduleOptions], whole: Collection[str], most: int) -> list[float]:
    """Where schedules along points, which follow one number, are looked at so that nothing that comes about is missed:
    where a value jumps or a straight line ends, and before, between and behind these.
    """
    counts = next(iter(group.values())).by in _COUNTERS
    changes = {at for key, options in group.items() for at in _changes(options, key in whole, counts, most)}
    if any(key in whole or _jumps(options) for key, options in group.items()):
        if counts:  # A counter is a whole number.
            changes = {near for at in changes for near in (math.ceil(at) - 1, math.ceil(at), math.floor(at) + 1)}
        else:
            between = {left + (right - left) / 2 for left, right in itertools.pairwise(sorted(changes))}
            changes = changes | between | {math.nextafter(at, -math.inf) for at in changes}
    return sorted({max(at, 0) for at in changes} if counts else changes)


def _jumps(options: ScheduleOptions) -> bool:
    """Whether a value along points does not always go in straight lines."""
    points = options.points or []
    return options.kind == STEP or any(left[0] == right[0] for left, right in itertools.pairwise(points))


def _changes(options: ScheduleOptions, whole: bool, counts: bool, most: int) -> Iterator[float]:
    """Points, and where a whole number between them becomes another one, which is half-way; of a counter that has fewer
    positions than the number has values, all positions.
    """
    points = options.points or []
    for at, _ in points:
        yield at
    if not whole or options.kind == STEP:
        return
    for (left, before), (right, after) in itertools.pairwise(points):
        low, high = nearest_whole(min(before, after)), nearest_whole(max(before, after))
        if counts and right - left <= high - low:
            yield from range(math.ceil(left), min(math.floor(right), math.ceil(left) + most) + 1)
            continue
        for value in range(low, min(high, low + most)):
            share = (value + 0.5 - before) / (after - before)
            yield left * (1 - share) + right * share


def _path(by: str) -> str:
    """Where the number that a schedule follows stands in a result."""
    return _PATHS.get(by, by)


def _number(result: Mapping[str, Any], path: str) -> float | None:
    """A finite number of a result, or ``None``."""
    found: Any = result
    for part in path.split("/"):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    if isinstance(found, bool) or not hasattr(found, "__float__"):  # numpy's numbers are none of Python's
        return None
    number = float(found)
    return number if math.isfinite(number) else None


def check_metrics(
    schedules: Mapping[str, ScheduleOptions],
    heads: Iterable[str],
    of_episodes: Collection[str],
    path: str,
    *,
    policies: Collection[str],
    complete: bool = False,
) -> None:
    """Raise :class:`ConfigError` for a schedule by a number that no result has.

    Args:
        schedules: By key.
        heads: First parts of the names of results' numbers.
        of_episodes: Names of those below ``env_runners``.
        path: Key of the schedules.
        policies: Those that learn, whose numbers stand below ``learners``.
        complete: Whether ``of_episodes`` are all that training reports; else only what is near to one is refused.
    """
    heads = [PPO_ITERATION, ENV_STEPS, *heads]
    for key, options in schedules.items():
        problem = _no_metric(options.by, heads, of_episodes, policies, complete)
        if problem is not None:
            raise ConfigError(f"{path}.{key}.by", problem)


def _no_metric(
    by: str, heads: Collection[str], of_episodes: Collection[str], policies: Collection[str], complete: bool
) -> str | None:
    """What is wrong with the name of a number in the results, as far as one can know before."""
    parts = by.removeprefix("evaluation/").split("/")
    evaluates = by.startswith("evaluation/")  # with measures, whose names are their own
    if parts[0] == "config":
        return f"{by!r} is what is configured, which never changes"
    if parts[0] == "learners" and not evaluates:
        known, part, closed = [*policies, "__all_modules__"], "/".join(parts[1:2]), True
    elif parts[0] == "env_runners":
        known, part, closed = list(of_episodes), "/".join(parts[1:2]), complete and not evaluates
    else:
        known, part, closed = list(heads), parts[0], not evaluates
    match = nearest(part, known)
    if part in known or not (match or closed):
        return None
    hint = f"did you mean {by.replace(part, match, 1)!r}?" if match else "e.g. env_runners/success_rate"
    return f"no result has {by!r}; {hint}"
