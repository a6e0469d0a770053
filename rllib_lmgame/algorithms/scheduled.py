"""Options that follow a schedule: what a key names, which values it takes, and what a configuration is at present."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rllib_lmgame.algorithms.occurring import MOST, occurring
from rllib_lmgame.envs.registry import options_of
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.settings.algorithms import AlgorithmEntry
from rllib_lmgame.settings.schedules import ScheduleOptions, Schedules, is_whole, place_of
from rllib_lmgame.settings.schema import Limits, leaves, limits, unknown_key, value_at, with_changes
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions, PlayerOptions
from rllib_lmgame.settings.sections.league import LeagueOptions
from rllib_lmgame.settings.sections.rllib import key_rule
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

if TYPE_CHECKING:
    from typing import Self


class ScheduledConfig(Protocol):
    """The part of an algorithm's configuration that schedules are about.

    Attributes:
        schedule_options: Key -> schedule.
        games: The list of games, if there is one.
        text_rollout_options, inference_options, token_ppo_options, language_model_options, data_selection_options: The
            sections.
        player_options: Policies by name.
        num_learners, evaluation_interval, use_kl_loss, entropy_coeff, algorithm_config_overrides_per_module: RLlib's.
    """

    schedule_options: Mapping[str, ScheduleOptions]
    games: tuple[GameConfig, ...]
    text_rollout_options: TextRolloutOptions
    inference_options: InferenceOptions
    token_ppo_options: TokenPPOOptions
    language_model_options: LanguageModelOptions
    data_selection_options: DataSelectionOptions
    player_options: dict[str, PlayerOptions]
    num_learners: int
    evaluation_interval: int | None
    use_kl_loss: bool
    entropy_coeff: Any
    algorithm_config_overrides_per_module: Any

    @property
    def entry(self) -> AlgorithmEntry:
        """Of the algorithm."""

    @property
    def learner_class(self) -> type:
        """RLlib's."""

    def get_default_learner_class(self) -> type:
        """Of the algorithm."""

    @property
    def has_other_callbacks(self) -> bool:
        """Whether there are callbacks beside this package's own, which may report whatever they like."""

    def trained_policies(self) -> list[str]:
        """Policies that learn."""

    def training_games(self) -> tuple[GameConfig, ...]:
        """The games that are trained on, as they are configured."""

    def league_of_run(self) -> LeagueOptions | None:
        """The league, if there is one."""

    def state_rollouts(self) -> dict[str, int]:
        """Trained policies whose advantage estimators want rollouts from every state -> how many."""

    def needs_critic(self, policy: str) -> bool:
        """Whether a policy that learns has a value function."""

    def estimator_of(self, policy: str) -> str:
        """Name of a policy's advantage estimator."""

    def language_model_policies(self) -> list[str]:
        """Policies that need an engine."""

    def language_model_of(self, policy: str) -> LanguageModelOptions:
        """How a policy's model is talked to."""

    def get_config_for_module(self, module_id: str) -> Self:
        """RLlib's: with what this policy has of its own."""


@dataclass(frozen=True)
class Target:
    """What a key names.

    Attributes:
        hint: Type of the option.
        limits: Its limits.
        games: Games of the list that it changes.
        option: Of their ``env_config``; ``None`` is their weight.
    """

    hint: Any
    limits: Limits
    games: tuple[int, ...] = ()
    option: str | None = None

    @property
    def whole(self) -> bool:
        """Whether values are whole numbers."""
        return is_whole(self.hint)


@dataclass(frozen=True)
class Present:
    """What schedules leave of a configuration in one iteration.

    Attributes:
        games: The games that are trained on.
        sections: The options of each section, ``None`` of one that is off.
        language_model: Options of that section that follow a schedule.
        learner: What the learners have to know, by key.
    """

    games: tuple[GameConfig, ...]
    sections: Mapping[str, Any]
    language_model: Mapping[str, Any]
    learner: Mapping[str, float]

    @property
    def rollouts(self) -> TextRolloutOptions:
        """The section ``text_rollouts``."""
        options: TextRolloutOptions = self.sections["text_rollouts"]
        return options

    @property
    def inference(self) -> InferenceOptions:
        """The section ``inference``."""
        options: InferenceOptions = self.sections["inference"]
        return options

    @property
    def selection(self) -> DataSelectionOptions:
        """The section ``data_selection``."""
        options: DataSelectionOptions = self.sections.get("data_selection", DataSelectionOptions())
        return options


def at_present(config: ScheduledConfig, values: Mapping[str, float]) -> Present:
    """The configuration with ``values`` (of :meth:`~.Schedules.values`) in their places."""
    games = list(config.training_games())
    changes: dict[str, dict[str, float]] = {}
    learner = {}
    for key, value in values.items():
        target = find_target(key, config)
        for number in target.games:
            games[number] = _changed(games[number], target.option, value)
        if not target.games:
            section, _, name = key.partition(".")
            changes.setdefault(section if name else "", {})[name or key] = value
            learner[key] = value
    sections = {name: getattr(config, section.attribute) for name, section in config.entry.sections.items()}
    for name in sections.keys() & changes.keys():
        sections[name] = with_changes(sections[name], changes[name])
    return Present(tuple(games), sections, changes.get("language_model", {}), learner)


def schedules_of(config: ScheduledConfig) -> Schedules:
    """The schedules of a configuration, at their start."""
    return Schedules(config.schedule_options, whole_keys(config))


def whole_keys(config: ScheduledConfig) -> frozenset[str]:
    """Keys of schedules whose values are whole numbers."""
    return frozenset(key for key in config.schedule_options if find_target(key, config).whole)


def selects(config: ScheduledConfig) -> bool:
    """Whether there is data selection in any iteration."""
    scheduled = any(key.startswith("data_selection.") for key in config.schedule_options)
    return scheduled or config.data_selection_options.active


def game_variants(config: ScheduledConfig, most: int = MOST) -> Iterator[tuple[GameConfig, Mapping[str, float]]]:
    """The games as schedules of their options may make them, every one once, and the values that do so; of each game
    those of :func:`~rllib_lmgame.algorithms.occurring.occurring` with ``most``.
    """
    targets = {key: find_target(key, config) for key in config.schedule_options}
    whole, seen = whole_keys(config), {game.key for game in config.training_games()}
    for number, game in enumerate(config.training_games()):
        own = {key: targets[key].option for key in targets if number in targets[key].games}
        options = {key: option for key, option in own.items() if option is not None}
        for values in occurring({key: config.schedule_options[key] for key in options}, whole, most):
            changes = {option: values[key] for key, option in options.items()}
            variant = dataclasses.replace(game, env_config={**game.env_config, **changes})
            if variant.key not in seen:
                seen.add(variant.key)
                yield variant, values


def scheduled_games(config: ScheduledConfig, most: int = MOST) -> tuple[GameConfig, ...]:
    """The games that are trained on as they are configured, and as schedules may make them: of many ways the ends and
    an even sample, see :func:`game_variants`.
    """
    configured = {game.key: game for game in config.training_games()}
    return (*configured.values(), *(game for game, _ in game_variants(config, most)))


def find_target(key: str, config: ScheduledConfig) -> Target:
    """What a schedule's key names.

    Raises:
        ConfigError: if the option is no number, or lies in what is off.
    """
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
        return Target(float, limits(low=0), (int(number),))
    if not name:
        return Target(*key_rule(key))
    leaf = leaves(config.entry.groups[section])[name]
    _check_there(config, section, name)
    return Target(leaf.hint, leaf.field.metadata)


def _check_there(config: ScheduledConfig, section: str, name: str) -> None:
    """The groups that an option lies in are on, at least for a policy that learns."""
    attribute, above = config.entry.sections[section].attribute, name.rpartition(".")[0]
    configs = [config, *(config.get_config_for_module(policy) for policy in config.trained_policies())]
    if above and all(value_at(getattr(each, attribute), above) is None for each in configs):
        raise ConfigError(place_of(f"{section}.{name}"), f"has no effect: {section}.{above} is off; write its options")


def schedulable(group: type) -> list[str]:
    """Options of a group, and of those in it, that may follow a schedule."""
    return [key for key, leaf in leaves(group).items() if leaf.field.metadata.get("schedulable")]


def _game_target(path: str, config: ScheduledConfig, number: int, option: str) -> Target:
    """An option of a game: any number."""
    env = config.training_games()[number].env
    group = options_of(env)
    if group is None:  # Of such a game nothing is known before it is built.
        return Target(float, {}, (number,), option)
    if option not in leaves(group):
        there = [name for name, leaf in leaves(group).items() if _kinds(leaf.hint) & {int, float}]
        raise unknown_key(option, there, path.removesuffix(f".{option}"))
    leaf = leaves(group)[option]
    if not _kinds(leaf.hint) & {int, float}:
        raise ConfigError(path, f"is no number; a schedule cannot change `{option}` of {env}")
    return Target(leaf.hint, leaf.field.metadata, (number,), option)


def _changed(game: GameConfig, option: str | None, value: float) -> GameConfig:
    if option is None:
        return dataclasses.replace(game, weight=float(value))
    return dataclasses.replace(game, env_config={**game.env_config, option: value})


def _kinds(hint: Any) -> set[Any]:
    """The types that an annotation allows, but ``None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {arm for arm in typing.get_args(hint) if arm is not type(None)}
    return {hint}
