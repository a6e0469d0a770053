"""Options that follow schedules: which kind of number each is, and which of their values may come together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
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
    nearest_whole,
    place_of,
    shown_key,
    typed,
)
from rllib_lmgame.envs.registry import options_of
from rllib_lmgame.policies.options import TalkOptions
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.telemetry.metrics import unknown_metric

MOST = 1024
"""Combinations of values that are looked at, if nobody says more."""


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
    """Value combinations that schedules may produce, to check options that limit each other.

    Schedules that follow the same number go together: every stage, every point, and the whole numbers between points
    (at most ``most``). Others are combined in all ways, or above ``most`` combinations each alone, with the others at
    their beginnings.

    Args:
        whole: Keys whose values are whole numbers.
    """
    found = [_along(group, whole, most) for group in in_lockstep(schedules)]
    if math.prod(map(len, found)) <= most:
        return [_joined(parts) for parts in itertools.product(*found)]
    begin = _joined(along[0] for along in found)
    return [begin | values for along in found for values in along]


def in_lockstep(schedules: Mapping[str, ScheduleOptions]) -> list[dict[str, ScheduleOptions]]:
    """Schedules by those that go on together."""
    groups: dict[tuple[Any, ...], dict[str, ScheduleOptions]] = {}
    for key, options in schedules.items():
        groups.setdefault(options.lockstep, {})[key] = options
    return list(groups.values())


def _joined(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    return dict(itertools.chain(*(part.items() for part in parts)))


def _along(group: Mapping[str, ScheduleOptions], whole: Collection[str], most: int) -> list[dict[str, float]]:
    """Values of schedules that go together, each combination once."""
    if next(iter(group.values())).points is None:
        rows: Iterable[Any] = zip(*(options.values or () for options in group.values()), strict=True)
    else:
        places = {at for options in group.values() for at, _ in options.points or ()}
        for key in group.keys() & set(whole):
            places |= _between(group[key], most)
        rows = [
            [interpolate(options.points or (), at, options.type) for options in group.values()] for at in sorted(places)
        ]
    found = [{key: typed(key, value, whole) for key, value in zip(group, row, strict=True)} for row in rows]
    return list({tuple(values.items()): values for values in found}.values())


def _between(options: ScheduleOptions, most: int) -> set[float]:
    """Where a schedule comes to whole numbers between its points."""
    found = set[float]()
    for (left, before), (right, after) in itertools.pairwise(options.points or ()) if options.type == LINEAR else ():
        low, high = sorted((nearest_whole(before), nearest_whole(after)))
        numbers = range(low + 1, high)
        for number in numbers[:: max(1, -(-len(numbers) // most))]:
            found.add(left + (right - left) * (number - before) / (after - before))
    return found
