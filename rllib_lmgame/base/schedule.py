"""Numbers that change during a run. Importing this loads neither Ray nor torch.

A schedule follows a result, along points or in stages. Values depend only on past results, so resuming keeps them.
"""

from __future__ import annotations

import bisect
import math
import operator
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rllib_lmgame.base.errors import CheckpointError, ConfigError, nearest
from rllib_lmgame.base.group import (
    LARGEST,
    Group,
    Option,
    build,
    check_value,
    declared,
    given,
    key_below,
    limits,
    option,
    reads_schedules,
)
from rllib_lmgame.base.json_files import mapping_of, number_of

_METRIC = re.compile(r"[\w.+-]+(/[\w.+-]+)*")
RL_ITERATION, ENV_STEPS = "rl_iteration", "env_steps"

NUMBERS = {ENV_STEPS: "num_env_steps_sampled_lifetime"}
"""Names of our own for numbers of the results."""

COUNTERS = (RL_ITERATION, ENV_STEPS, *NUMBERS.values())
"""What is 0 before the first result."""

MOST = 1e15
"""No number that is followed grows larger, counts of steps included."""


def is_metric(value: Any) -> bool:
    """Whether ``value`` can be the name of a number in the results."""
    return isinstance(value, str) and _METRIC.fullmatch(value) is not None


def number_at(result: Mapping[str, Any], path: str) -> float | None:
    """A number of a result, by its name, of Python's, numpy's or torch's kind; it may be infinite.

    ``None`` for nothing, NaN, a truth value, a text, several numbers, or a whole number that no float can hold.
    """
    found: Any = result
    for part in path.split("/"):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    if getattr(found, "shape", None) == ():
        found = found.item()
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return None if math.isnan(number) else number


Points = Sequence[Sequence[float]]
STEP, LINEAR = "step", "linear"


class ScheduleOptions(Group):
    """A schedule in the place of a number: either ``points``, or ``values`` and ``above``."""

    by: str = option(
        RL_ITERATION, "What it follows: `rl_iteration`, `env_steps`, or a number of the results.", stranger=is_metric
    )
    points: list[list[float]] | None = option(None, "`[[at, value], ...]` with rising `at`; constant outside of them.")
    type: str = option(LINEAR, "Between two points: `linear`, or the earlier value (`step`).", choices=(STEP, LINEAR))
    values: list[float] | None = option(None, "Instead of `points`: the values of the stages, in order.")
    above: float | None = option(
        None, "With `values`: the next stage begins after `iterations` results in a row above this."
    )
    below: float | None = option(
        None, "With `values`: the stage before returns after so many results below this; null: never."
    )
    iterations: int = option(1, "With `values`: how many results in a row it takes.", ge=1)

    @property
    def last(self) -> float:
        """The value that it ends with, a whole number as such."""
        value = (self.values or [value for _, value in self.points or ()])[-1]
        return int(value) if float(value).is_integer() else value

    @property
    def lockstep(self) -> tuple[Any, ...]:
        """Schedules that agree in this go from stage to stage, or from point to point, together."""
        if self.points is not None:
            return (self.by,)
        return (self.by, self.above, self.below, self.iterations, len(self.values or ()))


def is_schedule(value: Any) -> bool:
    """Whether a value is a schedule as it stands in a file: ``{points: [[0, 1.0e-3], [1000, 1.0e-4]]}``."""
    if isinstance(value, Mapping):
        return "points" in value or ("values" in value and len(value) > 1)
    return isinstance(value, ScheduleOptions)


def is_meant_as_schedule(value: Any) -> bool:
    """Whether a value in the place of a number is a schedule, be it a misspelt one."""
    keys = value if isinstance(value, Mapping) else ()
    return isinstance(value, ScheduleOptions) or any(key in _KEYS or nearest(key, _KEYS) for key in keys)


def with_numbers(value: Any, number: Callable[[str, ScheduleOptions], float], path: str = "") -> Any:
    """An option group, or another value, with a number in the place of each schedule in it, by its dotted key."""
    if isinstance(value, ScheduleOptions):
        return number(path, value)
    if isinstance(value, Group):
        changed = {}
        for key, each in declared(type(value)).items():
            old = getattr(value, each.name)
            if (new := with_numbers(old, number, key_below(path, key))) is not old:
                changed[each.name] = float(new) if isinstance(old, ScheduleOptions) and not is_whole(each.hint) else new
        return value.model_copy(update=changed) if changed else value
    if isinstance(value, Mapping):
        items = {key: with_numbers(item, number, key_below(path, key)) for key, item in value.items()}
        return items if any(items[key] is not item for key, item in value.items()) else value
    if isinstance(value, list | tuple):
        found = [with_numbers(item, number, key_below(path, n)) for n, item in enumerate(value)]
        return type(value)(found) if any(new is not old for new, old in zip(found, value, strict=True)) else value
    return value


def schedules_in(value: Any) -> dict[str, ScheduleOptions]:
    """The schedules in a group, or in another value, by their dotted keys."""
    found: dict[str, ScheduleOptions] = {}

    def note(key: str, options: ScheduleOptions) -> float:
        found[key] = options
        return options.last

    with_numbers(value, note)
    return found


def is_whole(hint: Any) -> bool:
    """Whether an option is a whole number, or nothing."""
    kinds = typing.get_args(hint) or (hint,)
    return int in kinds and float not in kinds


def check_numbers(options: ScheduleOptions, hint: Any, bounds: Mapping[str, Any], path: str) -> None:
    """Raise :class:`ConfigError` for a number of a schedule that is none of the option's."""
    points = [(f"points[{number}]", value) for number, (_, value) in enumerate(options.points or ())]
    values = [(f"values[{number}]", value) for number, value in enumerate(options.values or ())]
    for part, value in points + values:
        check_value(value, int if is_whole(hint) else hint, bounds, f"{path}.{part}")


def place_of(key: str) -> str:
    """Where the option of a schedule's dotted key stands: ``games.0.weight`` -> ``config.games[0].weight``."""
    return "config." + re.sub(r"\bgames\.(\d+)", r"games[\1]", key)


def game_of(key: str) -> tuple[int | None, str]:
    """The game whose option a schedule's key names (``None``: none of a game), and the option's key in its entry."""
    section, _, name = key.partition(".")
    if section == "env_config":
        return 0, key
    if section != "games":
        return None, key
    number, _, name = name.partition(".")
    return int(number), name


def shown_key(key: str, games: Sequence[Any]) -> str:
    """A schedule's key as results say it: ``games.0.weight`` of a game with a name is ``games.NAME.weight``."""
    number, option = game_of(key)
    name = games[number].name if number is not None and key.startswith("games.") and number < len(games) else None
    return key if name is None else f"games.{name}.{option}"


def read_schedule(value: Any, path: str, each: Option | None = None) -> ScheduleOptions:
    """One schedule, whose numbers option ``each`` takes. Raises: ConfigError: for a wrong key, type or combination."""
    options = build(ScheduleOptions, value, path)
    _check(options, path)
    if each is not None:
        check_numbers(options, each.hint, each.says, path)
    return options


@reads_schedules
def _in_place(value: Any, each: Option) -> ScheduleOptions | None:
    return read_schedule(value, "", each) if is_meant_as_schedule(value) else None


def with_schedules(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a game, each schedule among them as such. Raises: ConfigError: for a wrong one."""
    return {key: read_schedule(value, key) if is_schedule(value) else value for key, value in values.items()}


def _check(options: ScheduleOptions, path: str) -> None:
    if not is_metric(options.by):
        raise ConfigError(f"{path}.by", f"expected the name of a number in the results, got {options.by!r}")
    if (options.points is None) == (options.values is None):
        raise ConfigError(path, "needs either `points` or `values`")
    if options.points is not None:
        check_points(options.points, f"{path}.points")
        _check_belongs(options, ("above", "below", "iterations"), path, "values")
        return
    if not options.values:
        raise ConfigError(f"{path}.values", "needs at least one value")
    for number, stage in enumerate(options.values):
        check_value(stage, float, limits(ge=-LARGEST, le=LARGEST), f"{path}.values[{number}]")
    _check_belongs(options, ("type",), path, "points")
    if options.above is None:
        raise ConfigError(path, "`values` needs `above`: when the next stage begins")
    if options.by in COUNTERS:
        raise ConfigError(f"{path}.by", f"{options.by} only rises; with `values` name another number of the results")
    if options.below is not None and options.below >= options.above:
        raise ConfigError(f"{path}.below", f"must be less than above={options.above:g}, got {options.below:g}")


_KEYS = tuple(declared(ScheduleOptions))


def _check_belongs(options: ScheduleOptions, keys: Sequence[str], path: str, form: str) -> None:
    for key in keys:
        if key in given(options) and getattr(options, key) is not None:
            raise ConfigError(f"{path}.{key}", f"belongs to `{form}`, which is not given")


def check_points(points: Points, path: str) -> None:
    """Raise :class:`ConfigError` unless ``points`` are pairs of finite numbers with rising first ones."""
    if not points:
        raise ConfigError(path, "needs at least one point")
    for number, point in enumerate(points):
        if len(point) != 2:
            raise ConfigError(f"{path}[{number}]", f"a point is [at, value], got {list(point)!r}")
        for part, largest in zip(point, (MOST, LARGEST), strict=True):
            check_value(part, float, limits(ge=-largest, le=largest), f"{path}[{number}]")
        if number and point[0] < points[number - 1][0]:
            raise ConfigError(f"{path}[{number}]", f"{point[0]:g} comes before {points[number - 1][0]:g}")


def interpolate(points: Points, at: float, way: str = LINEAR) -> float:
    """The value at a position; from there on, the second of two points at one position counts."""
    reached = bisect.bisect_right(points, at, key=operator.itemgetter(0))
    if reached in (0, len(points)):
        return float(points[max(reached - 1, 0)][1])
    (left, before), (right, after) = points[reached - 1], points[reached]
    if way == STEP or at == left:  # Half of the smallest distance is 0.
        return float(before)
    value = (after - before) / (right - left) * (at - left) + before
    return float(min(max(value, min(before, after)), max(before, after)))


class Schedules:
    """The present values of all schedules; ``whole`` are the keys of whole numbers."""

    def __init__(self, schedules: Mapping[str, ScheduleOptions], whole: Collection[str] = ()) -> None:
        self._schedules = dict(schedules)
        self._whole = frozenset(whole)
        self._seen: dict[str, float] = {}
        self._stages = {key: 0 for key, options in schedules.items() if options.values is not None}
        self._in_a_row = dict.fromkeys(self._stages, 0)

    def values(self) -> dict[str, float]:
        """Key -> value of the coming iteration."""
        return {key: typed(key, self._value(key, options), self._whole) for key, options in self._schedules.items()}

    def observe(self, result: Mapping[str, Any]) -> None:
        """An iteration is over, with this result."""
        for path in {_path(options.by) for options in self._schedules.values()}:
            number = number_at(result, path)
            if number is None or math.isinf(number):
                continue
            self._seen[path] = number
            for key in self._stages:
                if _path(self._schedules[key].by) == path:
                    self._count(key, number)

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"seen": dict(self._seen), "stages": dict(self._stages), "in_a_row": dict(self._in_a_row)}

    def set_state(self, state: Mapping[str, Any], counters: Mapping[str, float] | None = None) -> None:
        """Take over a state of :meth:`state` (empty: a run without schedules). Removed stages are dropped.

        New stages begin where others of the same rule are, or with the first.

        Args:
            counters: :data:`RL_ITERATION` and :data:`ENV_STEPS` at that time, for schedules added now.

        Raises: CheckpointError: names a wrong number of the state.
        """
        try:
            seen, stages, in_a_row = (_numbers(state, part) for part in ("seen", "stages", "in_a_row"))
        except ValueError as error:
            raise CheckpointError(f"the checkpoint's state of the schedules is damaged: {error}") from None
        self._seen = {_path(by): number for by, number in seen.items()}
        for by, number in (counters or {}).items():
            self._seen[_path(by)] = max(self._seen.get(_path(by), 0.0), float(number))
        of_rule = {self._schedules[key].lockstep: key for key in self._stages if key in stages}
        for key in self._stages:
            source = key if key in stages else of_rule.get(self._schedules[key].lockstep, key)
            last = len(self._schedules[key].values or ()) - 1
            self._stages[key] = min(max(int(stages.get(source, 0)), 0), last)
            self._in_a_row[key] = int(in_a_row.get(source, 0))

    def _value(self, key: str, options: ScheduleOptions) -> float:
        if options.points is None:
            return (options.values or [0.0])[self._stages[key]]
        start = 0.0 if options.by in COUNTERS else -math.inf
        return interpolate(options.points, self._seen.get(_path(options.by), start), options.type)

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


def typed(key: str, value: float, whole: Collection[str]) -> float:
    """A value of a schedule as its option takes it; ``whole``: keys whose values are the nearest whole numbers."""
    return math.floor(value + 0.5) if key in whole else float(value)


def _numbers(state: Any, part: str) -> dict[str, float]:
    saved = mapping_of(mapping_of(state, "it").get(part, {}), part)
    return {str(key): number_of(number, f"{part}.{key}") for key, number in saved.items()}


def _path(by: str) -> str:
    """Where the number that a schedule follows stands in a result."""
    return NUMBERS.get(by, by)
