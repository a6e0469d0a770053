"""Options that follow a schedule: what a key names, which values it takes, and what a configuration is at present."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rllib_lmgame.algorithms.options import DataSelectionOptions
from rllib_lmgame.algorithms.registry import AlgorithmEntry
from rllib_lmgame.algorithms.rllib_keys import FLAT_KEYS, SCHEDULED_KEYS, key_rule
from rllib_lmgame.algorithms.suggestions import find_key
from rllib_lmgame.algorithms.validation import check_language_model, check_rollouts, check_selection
from rllib_lmgame.envs.registry import game_spec, load_factory, make_game
from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.learners.options import TokenPPOOptions
from rllib_lmgame.policies.options import LanguageModelOptions, PlayerOptions
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.schedules import ScheduleOptions, Schedules, check_metrics, occurring
from rllib_lmgame.schema import Limits, build, check_value, limits, unknown_key
from rllib_lmgame.telemetry.metrics import EPISODE_NAMES, RESULT_HEADS

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
        num_learners, evaluation_interval, use_kl_loss: RLlib's.
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

    @property
    def entry(self) -> AlgorithmEntry:
        """Of the algorithm."""

    def training_games(self) -> tuple[GameConfig, ...]:
        """The games that are trained on, as they are configured."""

    def language_model_policies(self) -> list[str]:
        """Policies that need an engine."""

    def language_model_of(self, policy: str) -> LanguageModelOptions:
        """How a policy's model is talked to."""


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
        rollouts, inference, selection: The sections.
        language_model: Options of that section that follow a schedule.
        learner: What the learners have to know, by key.
    """

    games: tuple[GameConfig, ...]
    rollouts: TextRolloutOptions
    inference: InferenceOptions
    selection: DataSelectionOptions
    language_model: Mapping[str, Any]
    learner: Mapping[str, float]


def at_present(config: ScheduledConfig, values: Mapping[str, float]) -> Present:
    """The configuration with ``values`` (of :meth:`~rllib_lmgame.schedules.Schedules.values`) in their places."""
    games = list(config.training_games())
    sections: dict[str, dict[str, float]] = {}
    learner = {}
    for key, value in values.items():
        target = find_target(key, config)
        for number in target.games:
            games[number] = _changed(games[number], target.option, value)
        if not target.games:
            section, _, name = key.rpartition(".")
            sections.setdefault(section, {})[name] = value
            learner[key] = value
    return Present(
        tuple(games),
        dataclasses.replace(config.text_rollout_options, **sections.get("text_rollouts", {})),  # type: ignore[arg-type]
        dataclasses.replace(config.inference_options, **sections.get("inference", {})),  # type: ignore[arg-type]
        dataclasses.replace(config.data_selection_options, **sections.get("data_selection", {})),  # type: ignore[arg-type]
        sections.get("language_model", {}),
        learner,
    )


def schedules_of(config: ScheduledConfig) -> Schedules:
    """The schedules of a configuration, at their start."""
    return Schedules(config.schedule_options, _whole(config))


def scheduled_games(config: ScheduledConfig) -> tuple[GameConfig, ...]:
    """The games that are trained on as they are configured, and as schedules may make them."""
    found = {game.key: game for game in config.training_games()}
    for values in occurring(_of_games(config), _whole(config)):
        found |= {game.key: game for game in at_present(config, values).games}
    return tuple(found.values())


def check_schedules(config: ScheduledConfig, compares: str | None) -> None:
    """Check the schedules of a configuration: that their options are there, may change, and stay in their ranges.

    Args:
        config: The configuration.
        compares: Which option asks for groups, if one does.

    Raises:
        ConfigError: naming the schedule.
    """
    schedules = config.schedule_options
    if not schedules:
        return
    check_metrics(schedules, (*RESULT_HEADS, *config.entry.metrics), EPISODE_NAMES, PATH)
    taken: dict[tuple[int, str | None], str] = {}
    for key, options in schedules.items():
        target = find_target(key, config)
        _check_alone(key, config)
        for place in ((number, target.option) for number in target.games):
            if place in taken:
                raise ConfigError(f"{PATH}.{key}", f"changes what schedules.{taken[place]} changes")
            taken[place] = key
        if options.points is not None:
            for number, (_, value) in enumerate(options.points):
                _check_number(value, target, f"{PATH}.{key}.points[{number}]")
        for number, value in enumerate(options.values or ()):
            _check_number(value, target, f"{PATH}.{key}.values[{number}]")
        if options.by.startswith("evaluation/") and not config.evaluation_interval:
            raise ConfigError(f"{PATH}.{key}.by", f"{options.by} is never measured: set config.evaluation_interval")
    _check_together(config, compares)


def find_target(key: str, config: ScheduledConfig) -> Target:
    """What a key of ``schedules`` names.

    Raises:
        ConfigError: if there is no such option, it is no number, or it cannot change during a run.
    """
    path = f"{PATH}.{key}"
    section, _, name = key.partition(".")
    if key.startswith("env_config."):
        return _game_target(path, config, (0,) if not config.games else (), name)
    if key.startswith("games."):
        match = _GAME_KEY.fullmatch(key)
        if match is None:
            raise ConfigError(path, "must read games.GAME.env_config.OPTION or games.GAME.weight")
        games = _games_named(match["name"], config, path)
        return _game_target(path, config, games, match["option"]) if match["option"] else _weight(path, config, games)
    if section in config.entry.sections and name:
        return _section_target(path, config.entry.groups[section], section, name)
    if key in SCHEDULED_KEYS:
        return Target(*key_rule(key))
    if key in FLAT_KEYS:
        raise ConfigError(path, f"cannot change during a run; of RLlib's keys {', '.join(SCHEDULED_KEYS)} can")
    found = find_key(key, config.entry.groups, SCHEDULED_KEYS)
    raise ConfigError(path, f"unknown option; did you mean {found!r}?" if found else "unknown option")


def schedulable(group: type) -> list[str]:
    """Options of a group that may follow a schedule."""
    return [field.name for field in dataclasses.fields(group) if field.metadata.get("schedulable")]


def _section_target(path: str, group: type, section: str, name: str) -> Target:
    fields = {field.name: field for field in dataclasses.fields(group)}
    if name not in fields:
        raise unknown_key(name, fields, f"{PATH}.{section}")
    if not fields[name].metadata.get("schedulable"):
        there = ", ".join(schedulable(group))
        raise ConfigError(
            path, f"cannot change during a run; of {section} " + (f"{there} can" if there else "none can")
        )
    return Target(typing.get_type_hints(group)[name], fields[name].metadata)


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
                raise unknown_key(option, fields, path.removesuffix(f".{option}"))
            found = Target(typing.get_type_hints(group)[option], fields[option].metadata, tuple(games), option)
            if not _kinds(found.hint) & {int, float}:
                raise ConfigError(path, f"is no number; a schedule cannot change `{option}` of {env}")
        target = target or found
    assert target is not None
    return target


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


def _check_alone(key: str, config: ScheduledConfig) -> None:
    """Nothing else may move the option, and it must have an effect."""
    path = f"{PATH}.{key}"
    if key in ("lr", "entropy_coeff") and isinstance(getattr(config, key), list):
        raise ConfigError(path, f"config.{key} is a schedule of RLlib's already; set it to a number")
    if key == "kl_coeff":
        if not config.use_kl_loss:
            raise ConfigError(path, "has no effect without use_kl_loss: true")
        if config.token_ppo_options.kl_schedule is not None:
            raise ConfigError(path, "stands beside token_ppo.kl_schedule; leave one of them out")


def _check_number(value: float, target: Target, path: str) -> None:
    if target.whole and not float(value).is_integer():
        raise ConfigError(path, f"expected a whole number, got {value:g}")
    hint = int | None if target.whole else target.hint
    check_value(int(value) if target.whole else value, hint, target.limits, path)


def _check_together(config: ScheduledConfig, compares: str | None) -> None:
    """What options ask of each other, and games of their options, at all values that come together."""
    built: set[str] = set()
    for values in occurring(config.schedule_options, _whole(config)):
        present = at_present(config, values)

        def of(section: str, values: Mapping[str, float] = values) -> Callable[..., str]:
            """The schedule at fault: the one of the key that a check names, else the first of the section."""

            def key(*names: str) -> str:
                keys = [f"{section}.{name}" for name in names if f"{section}.{name}" in values]
                return f"{PATH}.{next(iter(keys), _first(section, values))}"

            return key

        with _AsSchedule(_first("text_rollouts", values), values):
            check_rollouts(present.rollouts, config.num_learners, compares)
            check_selection(present.selection, present.rollouts, config.num_learners)
        if present.language_model:
            for policy in config.language_model_policies():
                own = {
                    name: value
                    for name, value in present.language_model.items()
                    if name not in config.player_options[policy].language_model
                }
                options = build(type(config.language_model_options), own, PATH, config.language_model_of(policy))
                check_language_model(options, of("language_model"))
        if sum(game.weight for game in present.games) <= 0:
            raise ConfigError(f"{PATH}.{_first('games', values)}", "all games would have a weight of 0 at once")
        for game in present.games:
            if game.key not in built and game not in config.training_games():
                built.add(game.key)
                with _AsSchedule(_first("games", values), values):
                    _close(make_game(game.env, game.env_config))


class _AsSchedule:
    """A :class:`ConfigError` raised inside names the schedule, and at which values."""

    def __init__(self, key: str, values: Mapping[str, float]) -> None:
        self._key = key
        self._values = values

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, ConfigError):
            return
        where = next((key for key in self._values if key.endswith(f".{error.path.rpartition('.')[2]}")), self._key)
        at = ", ".join(f"{key}={value:g}" for key, value in self._values.items())
        raise ConfigError(f"{PATH}.{where}", f"at {at}: {error.path}: {error.message}") from error


def _first(section: str, values: Mapping[str, float]) -> str:
    """The first schedule of a section, else the first of all."""
    prefixes = (f"{section}.", "env_config.") if section == "games" else (f"{section}.",)
    return next((key for key in values if key.startswith(prefixes)), next(iter(values), ""))


def _close(game: Any) -> None:
    close = getattr(game, "close", None)
    if callable(close):
        close()


def _changed(game: GameConfig, option: str | None, value: float) -> GameConfig:
    if option is None:
        return dataclasses.replace(game, weight=float(value))
    return dataclasses.replace(game, env_config={**game.env_config, option: value})


def _of_games(config: ScheduledConfig) -> dict[str, Any]:
    """Schedules of options of games."""
    return {key: options for key, options in config.schedule_options.items() if find_target(key, config).option}


def _whole(config: ScheduledConfig) -> frozenset[str]:
    return frozenset(key for key in config.schedule_options if find_target(key, config).whole)


def _kinds(hint: Any) -> set[Any]:
    """The types that an annotation allows, but ``None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {arm for arm in typing.get_args(hint) if arm is not type(None)}
    return {hint}
