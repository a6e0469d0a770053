"""Options that follow a schedule: what a key names, which values it takes, and what a configuration is at present."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rllib_lmgame.algorithms.occurring import MOST, occurring
from rllib_lmgame.envs.registry import options_of
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.settings.schedules import Schedules, is_whole, place_of
from rllib_lmgame.settings.schema import Limits, leaves, limits, unknown_key, value_at
from rllib_lmgame.settings.sections.rllib import key_rule

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Target:
    """What a key names.

    Attributes:
        hint: Type of the option.
        game: Index of the game that it changes, if any.
        option: Of its ``env_config``; ``None`` is its weight.
    """

    hint: Any
    limits: Limits
    game: int | None = None
    option: str | None = None

    @property
    def is_weight(self) -> bool:
        """Whether it is a game's share of the episodes."""
        return self.game is not None and self.option is None


def schedules_of(config: Any) -> Schedules:
    """The schedules of a configuration, at their start."""
    return Schedules(config.schedule_options, whole_keys(config))


def whole_keys(config: Any) -> frozenset[str]:
    """Keys of schedules whose values are whole numbers."""
    return frozenset(key for key in config.schedule_options if is_whole(find_target(key, config).hint))


def selects(config: Any) -> bool:
    """Whether there is data selection in any iteration."""
    scheduled = any(key.startswith("data_selection.") for key in config.schedule_options)
    return scheduled or config.data_selection_options.active


def game_variants(config: Any, most: int = MOST) -> Iterator[tuple[GameConfig, Mapping[str, float]]]:
    """Each distinct game that schedules may produce, with the values for it; ``most`` as in ``occurring``."""
    targets = {key: find_target(key, config) for key in config.schedule_options}
    whole, seen = whole_keys(config), {game.key for game in config.training_games()}
    for number, game in enumerate(config.training_games()):
        options = {key: target.option for key, target in targets.items() if target.game == number and target.option}
        for values in occurring({key: config.schedule_options[key] for key in options}, whole, most):
            changes = {option: values[key] for key, option in options.items()}
            variant = dataclasses.replace(game, env_config={**game.env_config, **changes})
            if variant.key not in seen:
                seen.add(variant.key)
                yield variant, values


def scheduled_games(config: Any, most: int = MOST) -> tuple[GameConfig, ...]:
    """The training games as configured and as schedules may make them, see :func:`game_variants`."""
    configured = {game.key: game for game in config.training_games()}
    return (*configured.values(), *(game for game, _ in game_variants(config, most)))


def find_target(key: str, config: Any) -> Target:
    """What a schedule's key names. Raises: ConfigError: if it is no number or lies in a section that is off."""
    path, (section, _, name) = place_of(key), key.partition(".")
    if section == "env_config":
        if config.games:
            raise ConfigError(path, "has no effect beside `games`; write it in the `env_config` of one of them")
        return _game_target(path, config, 0, name)
    if section == "games":
        number, _, name = name.partition(".")
        if name != "weight":
            return _game_target(path, config, int(number), name.removeprefix("env_config."))
        if len(config.training_games()) == 1:
            raise ConfigError(path, "has no effect: there is one game; list several below `games`")
        return Target(float, limits(low=0), int(number))
    if not name:
        return Target(*key_rule(key))
    leaf = leaves(config.entry.groups[section])[name]
    _check_there(config, section, name)
    return Target(leaf.hint, leaf.field.metadata)


def _check_there(config: Any, section: str, name: str) -> None:
    """The groups that an option lies in are on, at least for a policy that learns."""
    attribute, above = config.entry.sections[section].attribute, name.rpartition(".")[0]
    configs = [config, *(config.get_config_for_module(policy) for policy in config.trained_policies())]
    if above and all(value_at(getattr(each, attribute), above) is None for each in configs):
        raise ConfigError(place_of(f"{section}.{name}"), f"has no effect: {section}.{above} is off; write its options")


def _game_target(path: str, config: Any, number: int, option: str) -> Target:
    """An option of a game: any number."""
    env = config.training_games()[number].env
    group = options_of(env)
    if group is None:  # Of such a game nothing is known before it is built.
        return Target(float, {}, number, option)
    if option not in leaves(group):
        there = [name for name, leaf in leaves(group).items() if _kinds(leaf.hint) & {int, float}]
        raise unknown_key(option, there, path.removesuffix(f".{option}"))
    leaf = leaves(group)[option]
    if not _kinds(leaf.hint) & {int, float}:
        raise ConfigError(path, f"is no number; a schedule cannot change `{option}` of {env}")
    return Target(leaf.hint, leaf.field.metadata, number, option)


def _kinds(hint: Any) -> set[Any]:
    """The types that an annotation allows, but ``None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {arm for arm in typing.get_args(hint) if arm is not type(None)}
    return {hint}
