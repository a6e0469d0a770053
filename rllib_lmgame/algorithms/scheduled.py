"""Options that follow schedules: which kind of number each is, and which of their values may come together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import arms_of, leaves, option_at, unknown_key
from rllib_lmgame.base.schedule import (
    COUNTERS,
    LINEAR,
    ScheduleOptions,
    Schedules,
    game_of,
    interpolate,
    is_whole,
    place_of,
    shown_key,
    typed,
)
from rllib_lmgame.envs.registry import options_of
from rllib_lmgame.policies.options import TalkOptions
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.telemetry.metrics import unknown_metric

MOST = 64
"""Whole numbers between two points of a schedule that are looked at."""


def schedules_of(config: Any) -> Schedules:
    """The schedules of a configuration, at their start, by their keys as results say them."""
    whole = {shown_key(key, config.games) for key in whole_keys(config)}
    return Schedules({shown_key(key, config.games): each for key, each in config.run.schedules.items()}, whole)


def check_followed(schedules: Mapping[str, ScheduleOptions], result: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for a schedule by a metric that no result has."""
    for key, options in schedules.items():
        problem = None if options.by in COUNTERS else unknown_metric(options.by, result)
        if problem is not None:
            raise ConfigError(f"{place_of(key)}.by", problem)


def whole_keys(config: Any) -> frozenset[str]:
    """Keys of schedules whose values are whole numbers."""
    return frozenset(key for key in config.run.schedules if is_whole(kind_of(key, config)[0]))


def kind_of(key: str, config: Any) -> tuple[Any, Mapping[str, Any]]:
    """Type and limits of a schedule's option. Raises: ConfigError: if it is no number."""
    path, (game, option) = place_of(key), game_of(key)
    if game is None:
        leaf = option_at(config.run.written, key)
        return leaf.hint, leaf.says  # type: ignore[union-attr]
    if key.startswith("env_config.") and config.games:
        raise ConfigError(path, "has no effect beside `games`; write it in the `env_config` of one of them")
    group, _, inner = option.partition(".")
    if group == "env_config":
        return _kind_in_game(path, config.training_games()[game].env, inner)
    own = leaves(TalkOptions)[inner] if inner else leaves(GameConfig)[option]
    return own.hint, own.says


def _kind_in_game(path: str, env: str, option: str) -> tuple[Any, Mapping[str, Any]]:
    group = options_of(env)
    if group is None:  # Of such a game nothing is known before it is built.
        return float, {}
    numbers = {name: leaf for name, leaf in leaves(group).items() if {int, float} & set(arms_of(leaf.hint))}
    if option not in leaves(group):
        raise unknown_key(option, numbers, path.removesuffix(f".{option}"))
    if option not in numbers:
        raise ConfigError(path, f"is no number; a schedule cannot change `{option}` of {env}")
    return numbers[option].hint, numbers[option].says


def scheduled_games(config: Any, most: int = MOST) -> tuple[GameConfig, ...]:
    """The training games as configured and as schedules may make them, see :func:`game_variants`."""
    configured = {game.key: game for game in config.training_games()}
    return (*configured.values(), *(game for game, _ in game_variants(config, most)))


def game_variants(config: Any, most: int = MOST) -> Iterator[tuple[GameConfig, Mapping[str, float]]]:
    """Each distinct game that schedules may produce, with the values for it; ``most`` as in ``occurring``."""
    s, whole = config.run, whole_keys(config)
    seen = {game.key for game in config.training_games()}
    named = {key: game_of(key) for key in s.schedules}
    for number in range(len(s.games)):
        own = (key for key, (game, option) in named.items() if game == number and option.startswith("env_config."))
        followed = {key: s.schedules[key] for key in own}
        for values in occurring(followed, whole, most):
            variant = s.at(values).games[number]
            if variant.key not in seen:
                seen.add(variant.key)
                yield variant, values


def occurring(
    schedules: Mapping[str, ScheduleOptions], whole: Collection[str] = (), most: int = MOST
) -> list[dict[str, float]]:
    """Values that schedules may have together, to check options that limit each other.

    Schedules that follow the same number go together: every stage, every point, and whole numbers between two points
    (``most`` of them). Others are at their beginnings, and again at their ends.

    Args:
        whole: Keys whose values are whole numbers.
    """
    groups: dict[tuple[Any, ...], dict[str, ScheduleOptions]] = {}
    for key, options in schedules.items():
        groups.setdefault(options.lockstep, {})[key] = options
    rows = [_along(group, whole, most) for group in groups.values()]
    ends = [{key: value for along in rows for key, value in along[n].items()} for n in (0, -1)]
    found = [others | values for along in rows for values in along for others in ends]
    return list({tuple(values.items()): values for values in found}.values())


def _along(group: Mapping[str, ScheduleOptions], whole: Collection[str], most: int) -> list[dict[str, float]]:
    if next(iter(group.values())).points is None:
        rows = [list(row) for row in zip(*(options.values or () for options in group.values()), strict=True)]
    else:
        places: set[float] = set()
        for key, options in group.items():
            places |= _places(options, most if key in whole and options.type == LINEAR else 1)
        rows = [
            [interpolate(options.points or (), at, options.type) for options in group.values()] for at in sorted(places)
        ]
    return [{key: typed(key, value, whole) for key, value in zip(group, row, strict=True)} for row in rows]


def _places(options: ScheduleOptions, most: int) -> set[float]:
    """Where a schedule has its points, and between two of them at most so many whole numbers."""
    places = {at for at, _ in options.points or ()}
    for (left, before), (right, after) in itertools.pairwise(options.points or ()):
        count = int(min(most, abs(after - before)))
        places |= {left + (right - left) * n / count for n in range(1, count)}
    return places
