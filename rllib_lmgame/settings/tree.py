"""The settings of one run as one frozen value, which every check reads. Importing this loads neither Ray nor torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import (
    Group,
    as_mapping,
    build,
    declared,
    given,
    has_option,
    leaves,
    tag_of,
    value_at,
    with_changes,
)
from rllib_lmgame.base.schedule import (
    ScheduleOptions,
    game_of,
    is_meant_as_schedule,
    place_of,
    with_schedules,
    without_schedules,
)
from rllib_lmgame.base.storage import with_whole_paths
from rllib_lmgame.base.threads import AUTO
from rllib_lmgame.settings.algorithms import TOKEN_PPO, WITHOUT_VALUES, AlgorithmEntry, Section
from rllib_lmgame.settings.names import check_keys, not_in_evaluation
from rllib_lmgame.settings.sections.async_rollouts import AsyncRolloutOptions
from rllib_lmgame.settings.sections.games import GameConfig, check_evaluated, read_games
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import (
    LANGUAGE_MODEL,
    LanguageModelOptions,
    PlayerOptions,
    read_policies,
)
from rllib_lmgame.settings.sections.league import LeagueOptions, is_league
from rllib_lmgame.settings.sections.rllib import (
    FIELDS,
    SCHEDULED_KEYS,
    EvaluationOptions,
    RLlibOptions,
    check_rllib_key,
    read_deepspeed,
    schedule_of,
)
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions, SupervisedOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

OVERRIDES = "algorithm_config_overrides_per_module"
"""RLlib's key of what policies have of their own."""


@dataclass(frozen=True)
class Settings:
    """All settings of a run, or of one of its policies (:meth:`policy`).

    Attributes:
        sections: Section -> its options; ``None`` if off.
        rllib: RLlib's own keys.
        games: The games that are trained on.
        evaluation: What evaluations play and measure.
        schedules: Dotted key -> schedule.
        seats: ``policy_mapping_fn``.
        own: Policy -> its own options, as written in RLlib's overrides per module.
        keys: Dotted keys that were given; a policy's settings include its own.
        name: The policy; ``""`` for everybody's settings.
        present: Present values of schedules (:meth:`at`).
        asked: Options of ``language_model`` that a game asks for -> the place of its entry (:meth:`in_game`).
    """

    entry: AlgorithmEntry
    sections: Mapping[str, Any]
    rllib: RLlibOptions = RLlibOptions()
    policies: Mapping[str, PlayerOptions] = field(default_factory=lambda: {"player": PlayerOptions()})
    games: tuple[GameConfig, ...] = ()
    evaluation: EvaluationOptions = EvaluationOptions()
    schedules: Mapping[str, ScheduleOptions] = field(default_factory=dict)
    deepspeed: Mapping[str, Any] | None = None
    seats: Any = None
    own: Mapping[str, Any] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    name: str = ""
    present: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Any) -> Settings:
        """Those of a configuration object (:class:`~rllib_lmgame.algorithms.config.LMGameConfig`)."""
        flat = {name: getattr(config, name) for name in RLlibOptions.model_fields}
        return cls(
            entry=config.entry,
            sections={name: getattr(config, section.attribute) for name, section in config.entry.sections.items()},
            rllib=RLlibOptions.model_construct(**flat),
            policies=config.player_options,
            games=config.games or game_of_env(config.env, config.env_config),
            evaluation=config.evaluation_options,
            schedules=config.schedule_options,
            deepspeed=config.deepspeed_config,
            seats=config.seat_mapping_spec,
            own=config.algorithm_config_overrides_per_module or {},
            keys=frozenset(config.given_keys),
        )

    @classmethod
    def read(cls, config: Mapping[str, Any], entry: AlgorithmEntry) -> Settings:
        """Settings of a YAML ``config``, without the algorithm's own defaults. Undeclared RLlib keys are not checked.

        Raises: ConfigError: for a wrong key in a section, type or range.
        """
        schedules: dict[str, ScheduleOptions] = {}
        sections = {name: None if each.optional else each.group() for name, each in entry.sections.items()}
        for name, section in entry.sections.items():
            if name in config:
                check_keys(config[name], name, entry.groups, f"config.{name}")
                sections[name], found = read_section(name, section, config[name], sections[name])
                schedules |= found
        flat, found = without_schedules(RLlibOptions, {"env_config": config.get("env_config") or {}}, "config")
        schedules |= found
        for key in [key for key in config if key.rstrip("_") in FIELDS and key != "env_config"]:
            name = key.rstrip("_")
            if name in SCHEDULED_KEYS and is_meant_as_schedule(config[key]):
                schedules[name] = schedule_of(name, config[key])
            else:
                flat[FIELDS[name].name] = check_rllib_key(key, config[key])
        games, found = read_games(config["games"], "config.games") if "games" in config else ((), {})
        if not games and flat.get("env"):
            games = game_of_env(flat["env"], flat["env_config"])
        return cls(
            entry,
            sections,
            RLlibOptions.model_construct(**flat),
            read_policies(["player"] if config.get("policies") is None else config["policies"]),
            games=games,
            evaluation=read_evaluation(config.get("evaluation_config")),
            schedules=schedules | found,
            deepspeed=read_deepspeed(config.get("deepspeed")),
            seats=config.get("policy_mapping_fn"),
            own=config.get(OVERRIDES) or {},
            keys=frozenset(written(config)),
        )

    # -- sections -----------------------------------------------------------------------------------------------

    @property
    def lm(self) -> LanguageModelOptions:
        """The section ``language_model``."""
        return self._section("language_model", LanguageModelOptions)

    @property
    def inf(self) -> InferenceOptions:
        """The section ``inference``."""
        return self._section("inference", InferenceOptions)

    @property
    def play(self) -> TextRolloutOptions:
        """The section ``text_rollouts``."""
        return self._section("text_rollouts", TextRolloutOptions)

    @property
    def ppo(self) -> TokenPPOOptions:
        """The section ``token_ppo``."""
        return self._section("token_ppo", TokenPPOOptions)

    @property
    def data(self) -> DataSelectionOptions:
        """The section ``data_selection``; where an algorithm has none, its defaults."""
        return self._section("data_selection", DataSelectionOptions)

    @property
    def league(self) -> LeagueOptions | None:
        """The section ``league``; also where only the mapping asks for a league."""
        if "league" not in self.sections:
            return None
        options: LeagueOptions | None = self.sections["league"]
        return options or (LeagueOptions() if is_league(self.seats) else None)

    @property
    def async_rollouts(self) -> AsyncRolloutOptions:
        """The section ``async_rollouts``; where an algorithm has none, its defaults."""
        return self._section("async_rollouts", AsyncRolloutOptions)

    @property
    def deterministic(self) -> bool:
        """Whether the run repeats bit for bit: ``auto`` does on CPUs, where nothing depends on who finishes first."""
        asked = self.play.deterministic
        if asked != AUTO:
            return bool(asked)
        on_gpu = self.inf.on_gpu or self.rllib.num_gpus_per_learner > 0
        return not on_gpu and self.data.oversample <= 1 and not self.async_rollouts.max_staleness

    @property
    def supervised(self) -> SupervisedOptions | None:
        """The supervised stage: the section ``warm_start`` or ``supervised``."""
        return next((value for value in self.sections.values() if isinstance(value, SupervisedOptions)), None)

    @property
    def selects(self) -> bool:
        """Whether there is data selection in any iteration."""
        return self.data.active or any(key.startswith("data_selection.") for key in self.schedules)

    def _section(self, name: str, group: type) -> Any:
        options = self.sections.get(name)
        return group() if options is None else options

    # -- what was given -----------------------------------------------------------------------------------------

    def given(self, key: str) -> bool:
        """Whether an option was written or set in Python, or follows a schedule; the value may be its default."""
        if key in self.keys or key in self.schedules:
            return True
        above, _, name = key.rpartition(".")  # A group may be given as its type alone, or as an object.
        group = self.value(above) if "." in above and self.given(above) else None
        return group is not None and name in given(group)

    def follows(self, key: str) -> bool:
        """Whether an option follows a schedule."""
        return key in self.schedules

    def value(self, key: str) -> Any:
        """The value of a dotted key (``token_ppo.policy_loss.clip_high``); ``None`` if its section or group is off."""
        head, _, rest = key.partition(".")
        if not rest:
            return getattr(self.rllib, FIELDS[key].name)
        return value_at(self.evaluation if head == "evaluation_config" else self.sections.get(head), rest)

    def at(self, values: Mapping[str, Any]) -> Settings:
        """These settings with other values at dotted keys, as from schedules; groups that are off stay off."""
        sections, flat, games = dict(self.sections), {}, list(self.games)
        for key, value in values.items():
            head, _, rest = key.partition(".")
            number, option = game_of(key)
            if number is not None:
                games[number] = _game_with(games[number], option, value)
            elif not rest:
                flat[FIELDS[key].name] = value
            elif sections.get(head) is not None:
                sections[head] = with_changes(sections[head], {rest: value})
        rllib = self.rllib.model_copy(update=flat)
        return dataclasses.replace(self, sections=sections, rllib=rllib, games=tuple(games), present=dict(values))

    # -- policies and games -------------------------------------------------------------------------------------

    def is_trained(self, policy: str) -> bool:
        """Whether a policy learns: language models do unless they say otherwise."""
        options = self.policies[policy]
        return options.player == LANGUAGE_MODEL if options.trained is None else options.trained

    def trained_policies(self) -> list[str]:
        """Policies that learn, in the order given."""
        return [name for name in self.policies if self.is_trained(name)]

    def language_model_policies(self) -> list[str]:
        """Policies that need an engine."""
        return [name for name, options in self.policies.items() if options.player == LANGUAGE_MODEL]

    def model_of(self, policy: str, game: GameConfig | None = None) -> LanguageModelOptions:
        """The section ``language_model`` with what a game asks for, and above it what a policy has of its own."""
        own = self.policies[policy].language_model
        asked = {} if game is None else game.asked(own)
        base = build(LanguageModelOptions, asked, "config.games.language_model", self.lm) if asked else self.lm
        return build(LanguageModelOptions, own, f"config.policies.{policy}.language_model", base)

    def in_game(self, game: GameConfig, place: str) -> Settings:
        """A policy's settings (:meth:`policy`) in one game, whose entry stands at ``place`` below ``config``."""
        asked = game.asked(self.policies[self.name].language_model)
        sections = {**self.sections, "language_model": build(LanguageModelOptions, asked, "", self.lm)}
        others = {
            key for key in self.keys if not key.startswith("language_model.")
        }  # What these ask for acts elsewhere.
        keys = frozenset(others | {f"language_model.{key}" for key in asked})
        return dataclasses.replace(self, sections=sections, keys=keys, asked=dict.fromkeys(asked, place))

    @property
    def averages(self) -> bool:
        """Whether evaluation and export use averaged weights (``token_ppo.ema_decay``) of any policy."""
        by_ppo = self.entry.learned_by == TOKEN_PPO
        return by_ppo and any(self.policy(name).ppo.ema_decay is not None for name in self.trained_policies())

    @property
    def plays(self) -> bool:
        """Whether there are games at all: supervised learning from files can do without."""
        return bool(self.games or self.evaluation.games)

    def training_games(self) -> tuple[GameConfig, ...]:
        """``games``, or the one of ``env``; none where files alone are learnt from.

        Raises: ConfigError: if there is none and one is needed.
        """
        learnt = self.sections.get(self.entry.learned_by)
        if not self.games and self.entry.learned_by in WITHOUT_VALUES and getattr(learnt, "data", None) is not None:
            return ()
        if not self.games or not isinstance(self.games[0].env, str):
            raise ConfigError("env", "set env to a game, e.g. lmgame/Sokoban-v0 (`rllib games list` shows them)")
        return self.games

    @property
    def group_sizes(self) -> list[int]:
        """Episodes of a group, of each training game."""
        return [game.group_size or self.play.group_size for game in self.games]

    @property
    def least_size(self) -> int:
        """Episodes of the smallest group."""
        return min(self.group_sizes, default=self.play.group_size)

    @property
    def shared_size(self) -> int:
        """Episodes of a group of the games that share the iteration by weight."""
        pairs = zip(self.games, self.group_sizes, strict=True)
        return next((size for game, size in pairs if not game.episodes), self.play.group_size)

    @property
    def shared_episodes(self) -> int:
        """What games that say how many ``episodes`` they have leave of an iteration to the others."""
        return self.play.episodes_per_iteration - sum(game.episodes or 0 for game in self.games)

    @property
    def groups(self) -> int:
        """Groups in an iteration."""
        pairs = zip(self.games, self.group_sizes, strict=True)
        return self.shared_episodes // self.shared_size + sum((game.episodes or 0) // size for game, size in pairs)

    def own_keys(self, policy: str) -> frozenset[str]:
        """Dotted keys that a policy overrides, which no schedule changes; of a whole section, those that differ."""
        found: set[str] = set()
        for key, value in self._own(policy):
            section = self._section_at(key)
            found.add("lambda" if key == "lambda_" else key)
            if section is None:
                continue
            if isinstance(value, Mapping):
                found |= {f"{section}.{name}" for name in options_in(self.entry.groups[section], value)}
            else:
                everybodys = self.sections[section]
                names = leaves(self.entry.groups[section])
                found |= {f"{section}.{name}" for name in names if value_at(value, name) != value_at(everybodys, name)}
        return frozenset(found)

    def policy(self, name: str) -> Settings:
        """The settings of one policy: with what it has of its own, and without the schedules of these options."""
        own, sections, flat = self.own_keys(name), dict(self.sections), {}
        for key, value in self._own(name):
            section = self._section_at(key)
            if section is not None:
                group = self.entry.sections[section].group
                sections[section] = (
                    build(group, value, f"config.{section}", sections[section]) if isinstance(value, Mapping) else value
                )
            elif key.rstrip("_") in FIELDS:
                flat[FIELDS[key.rstrip("_")].name] = value
        model = {f"language_model.{option}" for option in self.policies[name].language_model}
        if self.policies[name].player == LANGUAGE_MODEL:
            sections["language_model"] = self.model_of(name)
        return dataclasses.replace(
            self,
            sections=sections,
            rllib=self.rllib.model_copy(update=flat),
            schedules={key: options for key, options in self.schedules.items() if key not in own | model},
            keys=self.keys | own | model,
            name=name,
        )

    def place(self, *keys: str) -> str:
        """The key to name of those that do not fit together: a policy's own for its language model, else the first."""
        for key in keys if self.name else ():
            section, _, option = key.partition(".")
            if section == "language_model" and option.partition(".")[0] in self.policies[self.name].language_model:
                return f"config.policies.{self.name}.{key}"
            if section == "language_model" and option in self.asked:
                return f"config.{self.asked[option]}.{key}"
        return f"config.{keys[0]}"

    def as_yaml(self) -> dict[str, Any]:
        """The settings as they would stand in a YAML file, JSON-ready: those that playing and evaluating need."""
        flat = ("env", "env_config", "seed", "num_envs_per_env_runner", "evaluation_duration", "gamma", "lambda")
        result = {key: self.value(key) for key in flat}
        result |= {name: as_mapping(group) for name, group in self.sections.items() if group is not None}
        result["policies"] = {name: as_mapping(options) for name, options in self.policies.items()}
        if self.own:
            result[OVERRIDES] = {policy: self._own_as_yaml(policy) for policy in self.own}
        if isinstance(self.seats, str | Mapping):
            result["policy_mapping_fn"] = self.seats
        elif self.seats is not None:  # A function without an import path cannot be read back, and the error names it.
            name = getattr(self.seats, "__qualname__", type(self.seats).__qualname__)
            result["policy_mapping_fn"] = f"{self.seats.__module__}:{name}"
        games = [game.as_mapping() for game in self.games]
        if games and games != [{"env": self.rllib.env, "env_config": self.rllib.env_config, "weight": 1.0}]:
            result["games"] = games
        evaluation = {
            "games": [game.as_mapping() for game in self.evaluation.games or ()],
            "measures": list(self.evaluation.measures or ()),
            "temperature": self.evaluation.sampling,
        }
        if evaluation := {key: value for key, value in evaluation.items() if value not in (None, [])}:
            result["evaluation_config"] = evaluation
        return with_schedules(result, self.schedules)

    def _own_as_yaml(self, policy: str) -> dict[str, dict[str, Any]]:
        """Options that a policy has of its own by RLlib's overrides, by section; of groups the whole."""
        sections, found = self.policy(policy).sections, dict[str, dict[str, Any]]()
        for section, _, name in (key.partition(".") for key in sorted(self.own_keys(policy))):
            if name:
                head = name.partition(".")[0]
                value = value_at(sections[section], head)
                found.setdefault(section, {})[head] = as_mapping(value) if isinstance(value, Group) else value
        return found

    def _own(self, policy: str) -> Iterator[tuple[str, Any]]:
        overrides = self.own.get(policy) if isinstance(self.own, Mapping) else None
        yield from (overrides or {}).items() if isinstance(overrides or {}, Mapping) else ()

    def _section_at(self, key: str) -> str | None:
        """The section that is called so, or that an attribute of this name holds."""
        names = self.entry.sections.items()
        return next((name for name, section in names if key in (name, section.attribute)), None)


def game_of_env(env: Any, env_config: Mapping[str, Any]) -> tuple[GameConfig, ...]:
    """The game of ``env``, where it is set; it is checked later."""
    return (GameConfig.model_construct(env=env, env_config=dict(env_config)),) if env else ()


def read_section(name: str, section: Section, values: Any, base: Any) -> tuple[Any, dict[str, ScheduleOptions]]:
    """Options of a section on top of ``base``, with absolute paths, and the schedules among them by dotted keys.

    ``None`` turns an optional section off, and says nothing of another. Raises: ConfigError: for a wrong key or value.
    """
    if values is None:
        return None if section.optional else base, {}
    values, found = without_schedules(section.group, values, f"config.{name}")
    options = build(section.group, with_whole_paths(section.group, values), f"config.{name}", base)
    return options, {f"{name}.{key}": each for key, each in found.items()}


def read_evaluation(values: Any, base: EvaluationOptions | None = None) -> EvaluationOptions:
    """Options of ``evaluation_config`` on top of ``base``; ``None`` is all defaults.

    Raises: ConfigError: for a wrong key or value, or one without effect there.
    """
    path, values = "config.evaluation_config", {} if values is None else values
    if isinstance(values, Mapping):
        for key in values:
            if key not in declared(EvaluationOptions):
                raise not_in_evaluation(str(key))
        if values.get("games") is not None:
            games, schedules = read_games(values["games"], f"{path}.games")
            for key in schedules:
                raise ConfigError(place_of(f"evaluation_config.{key}"), "cannot change: evaluations are compared")
            check_evaluated(games, f"{path}.games")
            values = {**values, "games": games}
    options = build(EvaluationOptions, values, path, base)
    if options.explore is False and options.temperature:
        raise ConfigError(f"{path}.temperature", "has no effect beside explore: false, which plays greedily")
    return options


def acts(options: Any, key: str) -> bool:
    """Whether the type of a group has an option, and the groups on the way to it are on."""
    head, _, rest = key.partition(".")
    there = options is not None and has_option(options, head)
    return there and (not rest or acts(value_at(options, head), rest))


def written(values: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of a mapping, at any depth."""
    for key, value in values.items() if isinstance(values, Mapping) else ():
        where = f"{path}.{key}" if path else str(key)
        yield where
        yield from written(value, where)


def _game_with(game: GameConfig, option: str, value: float) -> GameConfig:
    """A game with another value of an option of its entry."""
    group, _, name = option.partition(".")
    changed: Any = {**getattr(game, group), name: value} if name else float(value)
    return game.model_copy(update={group: changed})


def options_in(group: type, values: Any) -> Iterator[str]:
    """Options of a group that ``values`` set, by their dotted keys: a group as a whole, or none (off), sets all.

    Of a group without keys, which may switch it on, the group's own key.
    """
    if isinstance(values, str):
        yield str(tag_of(group))
    elif not isinstance(values, Mapping):
        yield from leaves(group)
    for key, value in values.items() if isinstance(values, Mapping) else ():
        inner = declared(group)[key].group_of(value) if key in declared(group) else None
        yield from (key,) if inner is None or value == {} else (f"{key}.{name}" for name in options_in(inner, value))
