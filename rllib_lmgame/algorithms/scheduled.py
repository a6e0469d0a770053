"""Options that follow a schedule: what a key names, which values it takes, and what a configuration is at present."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rllib_lmgame.algorithms.occurring import MOST, occurring
from rllib_lmgame.envs.registry import game_spec, load_factory
from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.settings.algorithms import AlgorithmEntry
from rllib_lmgame.settings.schedules import ScheduleOptions, Schedules
from rllib_lmgame.settings.schema import Limits, leaves, limits, unknown_key, value_at, with_changes
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions, PlayerOptions
from rllib_lmgame.settings.sections.league import LeagueOptions
from rllib_lmgame.settings.sections.rllib import FLAT_KEYS, OTHER_NAMES, SCHEDULED_KEYS, key_rule
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

if TYPE_CHECKING:
    from typing import Self

PATH = "config.schedules"

_GAME_KEY = re.compile(r"games\.(?P<name>.+?)\.(weight|env_config\.(?P<option>\w+))")


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

    def check_oversampling(self, rollouts: TextRolloutOptions, selection: DataSelectionOptions) -> None:
        """Whether these go together, if there is oversampling."""

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
        kinds = _kinds(self.hint)
        return int in kinds and float not in kinds


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
    """What a key of ``schedules`` names.

    Raises:
        ConfigError: if there is no such option, it is no number, or it cannot change during a run.
    """
    path = f"{PATH}.{key}"
    section, _, name = key.partition(".")
    if key.startswith("env_config."):
        return _game_target(path, config, (0,) if not config.games else (), name)
    if section == "games":
        match = _GAME_KEY.fullmatch(key)
        if match is None:
            raise ConfigError(path, "must read games.GAME.env_config.OPTION or games.GAME.weight")
        games = _games_named(match["name"], config, path)
        return _game_target(path, config, games, match["option"]) if match["option"] else _weight(path, config, games)
    if section in config.entry.sections and name:
        target = _section_target(path, config.entry.groups[section], section, name)
        _check_there(config, section, name)
        return target
    if key in SCHEDULED_KEYS:
        return Target(*key_rule(key))
    if key in FLAT_KEYS:
        raise ConfigError(path, f"cannot change during a run; of RLlib's keys {', '.join(SCHEDULED_KEYS)} can")
    if key in config.entry.sections:
        there = ", ".join(schedulable(config.entry.groups[key])) or "none"
        raise ConfigError(path, f"is a section; name an option of it that can change during a run: {there}")
    found = _find_schedulable(key, config)
    raise ConfigError(path, f"unknown option; did you mean {found!r}?" if found else "unknown option")


def _check_there(config: ScheduledConfig, section: str, name: str) -> None:
    """The section and the groups that an option lies in are on, at least for a policy that learns."""
    attribute, above = config.entry.sections[section].attribute, name.rpartition(".")[0]
    path = f"{PATH}.{section}.{name}"
    if getattr(config, attribute) is None:
        raise ConfigError(path, f"has no effect: there is no section {section} in this run")
    configs = [config, *(config.get_config_for_module(policy) for policy in config.trained_policies())]
    if above and all(value_at(getattr(each, attribute), above) is None for each in configs):
        raise ConfigError(path, f"has no effect: {section}.{above} is off; write its options")


def _find_schedulable(key: str, config: ScheduledConfig) -> str | None:
    """The key that may follow a schedule and is most likely meant."""
    there = {name: name for name in SCHEDULED_KEYS}
    for section, group in config.entry.groups.items():
        for name in schedulable(group):
            there.setdefault(name.rpartition(".")[2], f"{section}.{name}")
    for game in config.training_games():
        for name in _numbers(getattr(load_factory(game_spec(game.env)), "Options", None)):
            there.setdefault(name, f"games.GAME.env_config.{name}" if config.games else f"env_config.{name}")
    name = OTHER_NAMES.get(key, key)
    match = name if name in there else nearest(key, [*there, *there.values()])
    return match if match is None else there.get(match, match)


def schedulable(group: type) -> list[str]:
    """Options of a group, and of those in it, that may follow a schedule."""
    return [key for key, leaf in leaves(group).items() if leaf.field.metadata.get("schedulable")]


def _section_target(path: str, group: type, section: str, name: str) -> Target:
    there = schedulable(group)
    if name not in leaves(group) and there:
        raise unknown_key(name, there, f"{PATH}.{section}")
    if name not in there:
        raise ConfigError(
            path, f"cannot change during a run; of {section} " + (f"{', '.join(there)} can" if there else "none can")
        )
    return Target(leaves(group)[name].hint, leaves(group)[name].field.metadata)


def _game_target(path: str, config: ScheduledConfig, games: Sequence[int], option: str) -> Target:
    """An option of games: all of them must have it."""
    if not games:
        raise ConfigError(path, f"which of `games`? Write games.GAME.env_config.{option}")
    target = None
    for number in games:
        env = config.training_games()[number].env
        group = getattr(load_factory(game_spec(env)), "Options", None)
        if group is None:  # Of such a game nothing is known before it is built.
            found = Target(float, {}, tuple(games), option)
        else:
            fields = {field.name: field for field in dataclasses.fields(group)}
            if option not in fields:
                raise unknown_key(option, _numbers(group), path.removesuffix(f".{option}"))
            found = Target(typing.get_type_hints(group)[option], fields[option].metadata, tuple(games), option)
            if option not in _numbers(group):
                raise ConfigError(path, f"is no number; a schedule cannot change `{option}` of {env}")
        target = target or found
    assert target is not None
    return target


def _numbers(group: type | None) -> list[str]:
    """Options of a game's group that are numbers."""
    hints = {} if group is None else typing.get_type_hints(group)
    return [name for name, hint in hints.items() if _kinds(hint) & {int, float}]


def _weight(path: str, config: ScheduledConfig, games: Sequence[int]) -> Target:
    if len(config.training_games()) == 1:
        raise ConfigError(path, "has no effect: there is one game; list several below `games`")
    return Target(float, limits(low=0), tuple(games))


def _games_named(name: str, config: ScheduledConfig, path: str) -> tuple[int, ...]:
    """Games of the list by number, by id (also without namespace and version), or ``*`` for all."""
    games = config.training_games()
    if name == "*":
        return tuple(range(len(games)))
    if name.isdecimal():
        if int(name) >= len(games):
            raise ConfigError(path, f"there are {len(games)} games, numbered from 0")
        return (int(name),)
    names = [{game.env, short := game.env.rpartition("/")[2], re.sub(r"-v\d+$", "", short)} for game in games]
    found = tuple(number for number, known in enumerate(names) if name in known)
    if not found:
        match = nearest(name, {short for known in names for short in known})
        raise ConfigError(path, f"no game {name!r} is trained on" + (f"; did you mean {match!r}?" if match else ""))
    if len(found) > 1:
        raise ConfigError(path, f"{name} stands {len(found)} times in the list; write its number, counted from 0")
    return found


def _changed(game: GameConfig, option: str | None, value: float) -> GameConfig:
    if option is None:
        return dataclasses.replace(game, weight=float(value))
    return dataclasses.replace(game, env_config={**game.env_config, option: value})


def _kinds(hint: Any) -> set[Any]:
    """The types that an annotation allows, but ``None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {arm for arm in typing.get_args(hint) if arm is not type(None)}
    return {hint}
