"""All options of a run as one frozen group, which every check reads. Importing this loads neither Ray nor torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr, create_model

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.group import Group, as_data, as_mapping, build, declared, option, value_at, walk
from rllib_lmgame.base.schedule import ScheduleOptions, schedules_in, with_numbers
from rllib_lmgame.base.storage import with_absolute_paths
from rllib_lmgame.base.threads import AUTO
from rllib_lmgame.config.algorithms import (
    ACTION_VALUES,
    OWN,
    PREFERENCES,
    SUPERVISED,
    TRAINING,
    AlgorithmEntry,
    AsyncRolloutOptions,
)
from rllib_lmgame.config.rllib import FLAT_KEYS, INSTEAD, TAKEN, EvaluationOptions, OtherOptions, RLlibOptions
from rllib_lmgame.datasets.options import SupervisedOptions
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.league.options import LeagueOptions, is_league
from rllib_lmgame.learners.options import TeacherOptions, TrainingOptions
from rllib_lmgame.policies.options import LANGUAGE_MODEL, LanguageModelOptions, PlayerOptions
from rllib_lmgame.rollouts.options import DataSelectionOptions, GameConfig, TextRolloutOptions, game_of_env

OVERRIDES = "algorithm_config_overrides_per_module"
"""RLlib's key of what policies have of their own."""


class RunConfig(RLlibOptions, OtherOptions):
    """The options of a run, or of one of its policies (:meth:`policy`), with numbers in the places of schedules.

    Each section is an attribute: :func:`run_class` makes options of those that an algorithm has, others are
    :data:`ABSENT`. What was written, schedules included, is ``written``; of that,
    ``games`` has no game of ``env``.

    Attributes:
        entry: The algorithm.
        name: The policy; ``""`` for everybody's options.
        present: Present values of schedules.
        asked: Options of ``language_model`` that a game asks for -> the place of its entry (:meth:`in_game`).
    """

    entry: ClassVar[AlgorithmEntry]
    if TYPE_CHECKING:
        policies: dict[str, PlayerOptions] = {}
        games: tuple[GameConfig, ...] = ()  # type: ignore[assignment]
        language_model: LanguageModelOptions = LanguageModelOptions()
        inference: InferenceOptions = InferenceOptions()
        text_rollouts: TextRolloutOptions = TextRolloutOptions()
        training: TrainingOptions = TrainingOptions()
        data_selection: DataSelectionOptions = DataSelectionOptions()
        async_rollouts: AsyncRolloutOptions = AsyncRolloutOptions()
        league: LeagueOptions | None = None
        teacher: TeacherOptions | None = None
        warm_start: SupervisedOptions | None = None
        supervised: SupervisedOptions | None = None
        dpo: Any = None
        agentevol: Any = None
        action_values: Any = None
    _written: RunConfig | None = PrivateAttr(None)
    _name: str = PrivateAttr("")
    _present: Mapping[str, float] = PrivateAttr(default_factory=dict)
    _asked: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def __reduce__(self) -> Any:
        """The class of an algorithm's options is made, so that it cannot be imported."""
        return _restored, (self.entry, self.__getstate__())

    @property
    def written(self) -> RunConfig:
        return self._written or self

    @property
    def name(self) -> str:
        return self._name

    @property
    def present(self) -> Mapping[str, float]:
        return self._present

    def with_values(self, values: Mapping[str, Any]) -> RunConfig:
        """The run with other options on top, as written in a file; ``null`` turns what is optional off.

        Raises: ConfigError: for wrong keys, types or ranges; all of them.
        """
        with _likely_keys(self.entry.groups):
            return build(type(self), self._prepared(values), "config", self.written).at({})

    def _prepared(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Options with paths that are absolute; nothing is said by a ``null`` in the place of a section."""
        found: dict[str, Any] = {}
        for key, value in values.items():
            key = own_key(type(self), key) or key
            each = declared(type(self)).get(key)
            if each is not None and each.group is not None:
                if value is None and not each.nullable:
                    if key != "evaluation_config":
                        continue
                    value = EvaluationOptions()
                value = with_absolute_paths(each.group, value)
            found[key] = value
        return found

    def at(self, values: Mapping[str, float]) -> RunConfig:
        """The run with values of schedules by their keys, else the last ones; options that are off stay off."""
        written = self.written
        run = with_numbers(written, lambda key, options: values.get(key, options.last))
        own: dict[str, Any] = {"games": run.games or game_of_env(run.env, run.env_config)}
        if "league" in self.entry.sections and is_league(run.policy_mapping_fn):
            own["league"] = run.league or LeagueOptions()
        run = run.model_copy(update=own)
        run._written, run._name, run._present, run._asked = written, self._name, dict(values), self._asked
        return run

    @property
    def schedules(self) -> dict[str, ScheduleOptions]:
        """Dotted key -> schedule."""
        return schedules_in(self.written)

    def value(self, key: str) -> Any:
        """The value of a dotted key (``training.policy_loss.clip_high``); ``None`` if its section or group is off."""
        return value_at(self, key)

    @property
    def supervised_stage(self) -> SupervisedOptions | None:
        """The supervised stage: the section ``warm_start`` or ``supervised``."""
        return self.warm_start or self.supervised

    @property
    def deterministic(self) -> bool:
        """Whether the run repeats bit for bit: ``auto`` does on CPUs, where nothing depends on who finishes first."""
        asked = self.text_rollouts.deterministic
        if asked != AUTO:
            return bool(asked)
        on_gpu = self.inference.on_gpu or self.num_gpus_per_learner > 0
        return not on_gpu and self.data_selection.oversample <= 1 and not self.async_rollouts.max_staleness

    @property
    def engine_options(self) -> InferenceOptions:
        """The section ``inference``; to repeat, float32 on CPUs, where bits of bfloat16 depend on the batch."""
        exact = self.text_rollouts.deterministic is True and self.inference.dtype == AUTO and not self.inference.on_gpu
        return self.inference.model_copy(update={"dtype": "float32"}) if exact else self.inference

    @property
    def learnt(self) -> Any:
        """The section of an update, which says what the update needs (:class:`AlgorithmEntry`)."""
        return getattr(self, self.entry.learned_by, None)

    def needs_critic(self, policy: str) -> bool:
        """Whether a policy's update has a value function."""
        return bool(getattr(self.policy(policy).learnt, "needs_critic", False))

    def needs_reference(self, policy: str) -> bool:
        """Whether a policy's update compares it with a reference model."""
        return bool(getattr(self.policy(policy).learnt, "needs_reference", False))

    @property
    def compares(self) -> str | None:
        """The option that compares the episodes of a group, of the first policy that has one."""
        found = (getattr(self.policy(name).learnt, "compares", None) for name in self.trained_policies())
        return next(filter(None, found), None)

    @property
    def selects(self) -> bool:
        """Whether there is data selection in any iteration."""
        return self.data_selection.active or any(key.startswith("data_selection.") for key in self.schedules)

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
        asked, base = {} if game is None else game.asked(own), self.language_model
        if asked:
            base = build(LanguageModelOptions, asked, "config.games.language_model", base)
        with _likely_keys(self.entry.groups):
            return build(LanguageModelOptions, own, f"config.policies.{policy}.language_model", base)

    def in_game(self, game: GameConfig, place: str) -> RunConfig:
        """A policy's options (:meth:`policy`) in one game, whose entry stands at ``place`` below ``config``."""
        asked = game.asked(self.policies[self.name].language_model)
        run = self.model_copy(update={"language_model": build(LanguageModelOptions, asked, "", self.language_model)})
        run._asked = dict.fromkeys(asked, place)
        return run

    def own_keys(self, policy: str) -> frozenset[str]:
        """Dotted keys that a policy has of its own by RLlib's overrides, which no schedule changes."""
        return frozenset(_keys_in(self._own(policy)))

    def _own(self, policy: str) -> Mapping[str, Any]:
        own = getattr(self, OVERRIDES).get(policy)
        return own if isinstance(own, Mapping) else {}

    def policy(self, name: str) -> RunConfig:
        """The options of one policy: with what it has of its own, and without the schedules of these options."""
        own = {key: value for key, value in self._own(name).items() if own_key(type(self), key)}
        written = (self.with_values(own) if own else self).written
        model = self.policies[name].language_model
        if self.policies[name].player == LANGUAGE_MODEL and model:
            path = f"config.policies.{name}.language_model"
            written = written.model_copy(
                update={"language_model": build(LanguageModelOptions, model, path, written.language_model)}
            )
        run = written.at(self.present)
        run._name = name
        return run

    def place(self, *keys: str) -> str:
        """The key to name of those that do not fit together: a policy's own for its language model, else the first."""
        for key in keys if self.name else ():
            section, _, option = key.partition(".")
            if section == "language_model" and option.partition(".")[0] in self.policies[self.name].language_model:
                return f"config.policies.{self.name}.{key}"
            if section == "language_model" and option in self._asked:
                return f"config.{self._asked[option]}.{key}"
        return f"config.{keys[0]}"

    @property
    def averages(self) -> bool:
        """Whether evaluation and export use averaged weights (``training.ema_decay``) of any policy."""
        by_ppo = self.entry.learned_by == TRAINING
        return by_ppo and any(self.policy(name).training.ema_decay is not None for name in self.trained_policies())

    @property
    def plays(self) -> bool:
        """Whether there are games at all: supervised learning from files can do without."""
        return bool(self.games or self.evaluation_config.games)

    def training_games(self) -> tuple[GameConfig, ...]:
        """``games``, or the one of ``env``; none where files alone are learnt from.

        Raises: ConfigError: if there is none and one is needed.
        """
        if not self.games and getattr(self.learnt, "data", None) is not None:
            return ()
        if not self.games or not isinstance(self.games[0].env, str):
            raise ConfigError("env", "set env to a game, e.g. lmgame/Sokoban-v0 (`rllib games list` shows them)")
        return self.games

    @property
    def group_sizes(self) -> list[int]:
        """Episodes of a group, of each training game."""
        return [game.group_size or self.text_rollouts.group_size for game in self.games]

    @property
    def least_size(self) -> int:
        """Episodes of the smallest group."""
        return min(self.group_sizes, default=self.text_rollouts.group_size)

    @property
    def shared_size(self) -> int:
        """Episodes of a group of the games that share the iteration by weight."""
        pairs = zip(self.games, self.group_sizes, strict=True)
        return next((size for game, size in pairs if not game.episodes), self.text_rollouts.group_size)

    @property
    def shared_episodes(self) -> int:
        """What games that say how many ``episodes`` they have leave of an iteration to the others."""
        return self.text_rollouts.episodes_per_iteration - sum(game.episodes or 0 for game in self.games)

    @property
    def groups(self) -> int:
        """Groups in an iteration."""
        pairs = zip(self.games, self.group_sizes, strict=True)
        return self.shared_episodes // self.shared_size + sum((game.episodes or 0) // size for game, size in pairs)

    def as_yaml(self) -> dict[str, Any]:
        """The options as they would stand in a YAML file, JSON-ready: those that playing and evaluating need."""
        flat = ("env", "env_config", "seed", "num_envs_per_env_runner", "evaluation_duration", "gamma", "lambda")
        values = as_mapping(self.written)
        result = {key: values[key] for key in flat}
        result |= {key: values[key] for key in (*self.entry.sections, "policies") if values[key] is not None}
        evaluation = self.evaluation_config
        asked = {
            "games": as_data(evaluation.games),
            "measures": as_data(evaluation.measures),
            "temperature": evaluation.sampling,
        }
        said = {
            "games": as_data(self.written.games),
            OVERRIDES: as_data(getattr(self.written, OVERRIDES)),
            "evaluation_config": {key: value for key, value in asked.items() if value not in (None, [])},
            "policy_mapping_fn": import_path_of(self.policy_mapping_fn),
        }
        return result | {key: value for key, value in said.items() if value not in (None, [], {})}


ABSENT: Mapping[str, Any] = {
    TRAINING: TrainingOptions(),
    "data_selection": DataSelectionOptions(),
    "async_rollouts": AsyncRolloutOptions(),
    **dict.fromkeys(("league", "teacher", "warm_start", SUPERVISED, PREFERENCES, "agentevol", ACTION_VALUES)),
}
"""What sections are where an algorithm has none of the name."""

_CLASSES: dict[Any, type[RunConfig]] = {}


def run_class(entry: AlgorithmEntry) -> type[RunConfig]:
    """The options of an algorithm's runs."""
    key = (entry.name, entry.algorithm, entry.learned_by, tuple(entry.sections.items()))
    if key not in _CLASSES:
        sections = {
            name: (each.group | None, option(None, "")) if each.optional else (each.group, option(each.group(), ""))
            for name, each in entry.sections.items()
        }
        found: type[RunConfig] = create_model(  # type: ignore[call-overload]
            f"{entry.name}Run", __base__=RunConfig, __module__=__name__, **sections
        )
        found.entry = entry
        for name in ABSENT.keys() - entry.sections.keys():
            setattr(found, name, ABSENT[name])
        _CLASSES[key] = found
    return _CLASSES[key]


def _restored(entry: AlgorithmEntry, state: Any) -> RunConfig:
    cls = run_class(entry)
    run = cls.__new__(cls)
    run.__setstate__(state)
    return run


def own_key(cls: type, key: Any) -> str | None:
    """The option of a run that a key names, also as Python has it (``lambda_``); ``None`` if it names none."""
    return next((each.key for each in declared(cls).values() if key in (each.key, each.name)), None)


def import_path_of(function: Any) -> Any:
    """How a file names a function; one without an import path cannot be read back, and the error names it."""
    if function is None or isinstance(function, str | Mapping):
        return function
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def read(values: Mapping[str, Any], entry: AlgorithmEntry) -> RunConfig:
    """Options of a YAML ``config``, without the algorithm's own defaults.

    Raises: ConfigError: for keys that do not exist or do nothing here, wrong types or ranges; all of them.
    """
    cls = run_class(entry)
    rest = [key for key in map(str, values) if not own_key(cls, key) and key not in TAKEN]
    wrong = [unknown_at_top(key, entry.groups) for key in rest if not key.startswith(("callbacks_on_", "__"))]
    try:
        run = cls().with_values({key: value for key, value in values.items() if own_key(cls, key)})
    except ConfigError as error:
        raise ConfigError.together([*wrong, error]) from None
    if wrong:
        raise ConfigError.together(wrong)
    return run


_SUPERVISED = {"warm_start": "supervised", "supervised": "warm_start"}
"""What the section of supervised learning is called in algorithms that have the other one."""


_BESIDE = {"run", "stop", "scheduler", "search", "num_samples", "checkpoint_config", "report", "storage_path"}


def find_key(key: str, groups: Mapping[str, type]) -> str | None:
    """The dotted key below ``config`` that is meant: same name in a section, or the nearest.

    Args:
        key: An unknown key, without its path.
        groups: Section -> option group.
    """
    if key not in groups and _SUPERVISED.get(key) in groups:
        return _SUPERVISED[key]
    flat = {*FLAT_KEYS, *groups}
    within: dict[str, str] = {}
    for section, group in (*groups.items(), ("evaluation_config", EvaluationOptions)):
        for each in walk(group):
            within.setdefault(each.key.rpartition(".")[2], f"{section}.{each.key}")
    match = key if key in {*flat, *within} else nearest(key, flat, 0.85) or nearest(key, [*flat, *within])
    return None if match is None else match if match in flat else within[match]


def unknown_at_top(key: str, groups: Mapping[str, type]) -> ConfigError:
    """The error for a key of a configuration that nothing here reads: says the likely one, or what to set instead."""
    hint = INSTEAD.get(key.rstrip("_"), "put it next to `config:`, not below it" * (key in _BESIDE))
    match, others = find_key(key, groups), ", ".join(name for name, entry in OWN.items() if key in entry.sections)
    meant = f"did you mean {f'config.{match}'!r}?" if match else ""
    hint = hint or (f"it is one of {others}" if others and key not in _SUPERVISED else meant)
    return ConfigError(f"config.{key}", f"unknown key; {hint}" if hint else "unknown key")


@contextmanager
def _likely_keys(groups: Mapping[str, type]) -> Iterator[None]:
    """Errors for unknown keys name the places where keys of these names belong."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError.together(_likely(each, groups) for each in error.each) from None


def _likely(error: ConfigError, groups: Mapping[str, type]) -> ConfigError:
    above, _, key = error.path.rpartition(".")
    if not error.message.startswith("unknown key;"):
        return error
    if above == "config.evaluation_config" and f"evaluation_{key}" in FLAT_KEYS:
        key = f"evaluation_{key}"
    found = find_key(key, groups) or ""
    if found.rpartition(".")[2] != key or f"config.{found}" == error.path:  # an option of another type of this group
        return error
    return ConfigError(error.path, f"unknown key; did you mean 'config.{found}'?")


def _keys_in(values: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of a mapping, at any depth; those of a group that were given."""
    values = as_data(values) if isinstance(values, Group) else values
    for key, value in values.items() if isinstance(values, Mapping) else ():
        where = f"{path}.{key}" if path else str(key).rstrip("_")
        yield where
        yield from _keys_in(value, where)
