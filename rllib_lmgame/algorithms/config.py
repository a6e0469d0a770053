"""Configuration of the algorithms: RLlib's ``PPOConfig`` with sections for models, engines, rollouts and updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.policy.policy import PolicySpec
from ray.rllib.utils import force_list
from ray.rllib.utils.from_config import NotProvided
from ray.tune.registry import ENV_CREATOR, _global_registry
from ray.tune.search.variant_generator import parse_spec_vars
from ray.util import log_once

from rllib_lmgame.algorithms.admission import admit, check_overrides, check_who_learns
from rllib_lmgame.algorithms.demonstrations import with_demonstrations
from rllib_lmgame.algorithms.facts import PolicyFacts
from rllib_lmgame.algorithms.games import on_split
from rllib_lmgame.algorithms.measuring.measures import check_measures
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import check_value, describe, values_of, with_changes
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.base.schedule import ScheduleOptions, is_meant_as_schedule, with_schedules, without_schedules
from rllib_lmgame.envs.registry import games
from rllib_lmgame.learners.microbatch import Room
from rllib_lmgame.policies.mapping import MappingFn, make_mapping
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.records import TEXT_SPACE, GameConfig
from rllib_lmgame.settings.algorithms import AlgorithmEntry
from rllib_lmgame.settings.names import RUNTIME_FIELDS, check_keys, own_attributes, set_at_start, unknown_at_top
from rllib_lmgame.settings.plugins import MEASURES
from rllib_lmgame.settings.sections.async_rollouts import AsyncRolloutOptions
from rllib_lmgame.settings.sections.games import read_games
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import (
    LANGUAGE_MODEL,
    LanguageModelOptions,
    PlayerOptions,
    read_policies,
)
from rllib_lmgame.settings.sections.league import LeagueOptions
from rllib_lmgame.settings.sections.rllib import (
    FIELDS,
    SCHEDULED_KEYS,
    EvaluationOptions,
    RLlibOptions,
    check_rllib_key,
    check_without_effect,
    read_deepspeed,
    rllib_keys,
    schedule_of,
)
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions, SupervisedOptions
from rllib_lmgame.settings.sections.teacher import TeacherOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.settings.sections.token_ppo import KLOptions, TokenPPOOptions
from rllib_lmgame.settings.tree import Settings, acts, options_in, read_evaluation, read_section, written
from rllib_lmgame.telemetry.gauges import LMGameGauges
from rllib_lmgame.telemetry.quiet import leave_out_noise

if TYPE_CHECKING:
    from typing import Self

leave_out_noise()

DEFAULT_POLICY = "player"

MAX_CONFIG_BYTES = 1_000_000
CONFIG_FILE = "lmgame_config.json"
"""The configuration as it would stand in YAML; written into every checkpoint, so that evaluation unpickles nothing."""

RUN = "run"
"""Key in that file which names the algorithm the configuration belongs to, as in an experiment's file."""


class _Fresh(type(PPOConfig)):  # type: ignore[misc]
    """What a class's own ``__init__`` sets are its defaults; nothing of it was given."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        config = super().__call__(*args, **kwargs)
        config.given_keys = ()
        return config


class LMGameConfig(PPOConfig, metaclass=_Fresh):
    """Base of the algorithms' configurations: each sets ``entry`` (its sections) and has one method per own section."""

    entry: ClassVar[AlgorithmEntry]
    follows_schedules: ClassVar[bool] = False
    """Whether the algorithm knows of ``schedules``."""
    language_model_options: LanguageModelOptions
    inference_options: InferenceOptions
    text_rollout_options: TextRolloutOptions
    token_ppo_options: TokenPPOOptions = TokenPPOOptions()  # of the class, where an algorithm has no such section
    supervised_options: SupervisedOptions | None
    evaluation_options: EvaluationOptions
    league_options: LeagueOptions | None = None  # likewise
    teacher_options: TeacherOptions | None = None  # likewise
    data_selection_options: DataSelectionOptions = DataSelectionOptions()  # likewise
    async_rollout_options: AsyncRolloutOptions = AsyncRolloutOptions()  # likewise
    schedule_options: Mapping[str, ScheduleOptions] = MappingProxyType({})
    given_keys: tuple[str, ...] = ()
    """Dotted keys that were written or set in Python."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.supervised_options = None
        for section in self.entry.sections.values():
            setattr(self, section.attribute, None if section.optional else section.group())
        self.deepspeed_config: dict[str, Any] | None = None
        self.games: tuple[GameConfig, ...] = ()
        self.player_options: dict[str, PlayerOptions] = {DEFAULT_POLICY: PlayerOptions()}
        self.seat_mapping_spec: Any = None
        self.schedule_options = {}

        self.engine_names: dict[str, list[str]] = {}
        self.model_files: dict[str, ModelFiles] = {}
        self.other_games: tuple[GameConfig, ...] = ()
        self.episode_log_dir: str | None = None
        self.learner_rooms: dict[str, Room] = {}
        self.learner_threads: int | None = None
        self.watched_as: str | None = None

        # Defaults that suit language models; RLlib's own are for small networks and fast environments.
        self.env_runner_cls = TextGameEnvRunner
        self.batch_mode = "complete_episodes"
        self.rollout_fragment_length = "auto"
        self.add_default_connectors_to_learner_pipeline = False
        for name, default in values_of(RLlibOptions()).items():
            setattr(self, name, default)
        self.evaluation_duration_unit = "episodes"
        self.callbacks_class = [LMGameGauges]
        self._set_players(self.player_options)

    def __setattr__(self, key: str, value: Any) -> None:
        """RLlib's own methods set attributes: what they set was given."""
        name = key.rstrip("_")
        if name in SCHEDULED_KEYS and is_meant_as_schedule(value):
            self._follow([name], {name: schedule_of(name, value)})
        else:
            super().__setattr__(key, value)
            if name in self.schedule_options:
                self._follow([name], {})
        if name in FIELDS:
            self._give(name)

    def _follow(self, keys: Iterable[str], schedules: Mapping[str, ScheduleOptions]) -> None:
        """Options that were set follow their schedules from now on, or none."""
        gone = set(keys)
        kept = {
            key: options
            for key, options in self.schedule_options.items()
            if key not in gone and key.partition(".")[0] not in gone
        }
        self.schedule_options = {**kept, **schedules}

    def _give(self, *keys: str) -> None:
        self.given_keys = tuple(dict.fromkeys((*self.given_keys, *keys)))

    @property
    def settings(self) -> Settings:
        """All settings as one frozen value."""
        return Settings.of(self)

    # -- sections -----------------------------------------------------------------------------------------------

    def language_model(self, **options: Any) -> Self:
        """Which model, and how it is talked to: :class:`~.language_model.LanguageModelOptions`."""
        return self.set_section("language_model", options)

    def inference(self, **options: Any) -> Self:
        """The engines: :class:`~rllib_lmgame.settings.sections.inference.InferenceOptions`."""
        return self.set_section("inference", options)

    def text_rollouts(self, **options: Any) -> Self:
        """How episodes are played: :class:`~rllib_lmgame.settings.sections.text_rollouts.TextRolloutOptions`."""
        return self.set_section("text_rollouts", options)

    def token_ppo(self, **options: Any) -> Self:
        """The token-level update: :class:`~rllib_lmgame.settings.sections.token_ppo.TokenPPOOptions`."""
        return self.set_section("token_ppo", options)

    def deepspeed(self, config: Mapping[str, Any] | None = None, **options: Any) -> Self:
        """Put a DeepSpeed engine into each learner; no configuration at all turns it off.

        Args:
            options: Keys of its configuration, e.g. ``zero_optimization={"stage": 2}``.
        """
        made = read_deepspeed(config)
        self.deepspeed_config = None if made is None and not options else {**(made or {}), **options}
        self._give("deepspeed")
        return self

    def players(self, policies: Mapping[str, Any] | list[str], policy_mapping_fn: Any = None) -> Self:
        """Who plays: policies by name, and who takes which seat.

        Args:
            policies: Names, or name -> :class:`~rllib_lmgame.settings.sections.language_model.PlayerOptions` fields.
            policy_mapping_fn: See :func:`~rllib_lmgame.policies.mapping.make_mapping`.
        """
        self._set_players(read_policies(policies))
        self._give(*written({"policies": policies}))
        if policy_mapping_fn is not None:
            self.seat_mapping_spec = policy_mapping_fn
            self._give("policy_mapping_fn")
        return self

    def environment(self, env: Any = NotProvided, *, env_config: Any = NotProvided, **options: Any) -> Self:
        """As RLlib's; ``env`` names a game, or is its class or a function of a module. Its options may be schedules.

        Raises: ConfigError: for what env runners could not import.
        """
        env = env if env is NotProvided else _game_named(env)
        if env_config is not NotProvided:
            env_config, found = without_schedules(RLlibOptions, {"env_config": env_config}, "config")
            env_config = env_config["env_config"]
            self._follow([f"env_config.{name}" for name in env_config or ()], found)
            self._give(*written({"env_config": env_config}))
        super().environment(env, env_config=env_config, **options)
        return self

    def api_stack(self, **on: Any) -> Self:
        """RLlib's new API stack is the only one. Raises: ConfigError: it is switched off."""
        for key, value in on.items():
            if value not in (True, NotProvided):
                raise ConfigError(f"config.{key}", "must be true: there is no old API stack here; leave it out")
        return super().api_stack(**on)  # type: ignore[no-any-return]

    def multi_agent(
        self,
        *,
        policies: Any = NotProvided,
        policy_mapping_fn: Any = NotProvided,
        policies_to_train: Any = NotProvided,
        **options: Any,
    ) -> Self:
        """As RLlib's, for language models by name; :meth:`players` has more.

        Raises: ConfigError: for a ``PolicySpec`` with a class, spaces or a configuration.
        """
        super().multi_agent(**options)
        if policies is not NotProvided:
            self.players(_without_specs(policies))
            if isinstance(policies_to_train, list | tuple | set | frozenset):
                models = (name for name, each in self.player_options.items() if each.player == LANGUAGE_MODEL)
                learn: dict[str, Any] = {name: {"trained": name in policies_to_train} for name in models}
                self._set_players(
                    {name: each.model_copy(update=learn.get(name, {})) for name, each in self.player_options.items()}
                )
        if policy_mapping_fn is not NotProvided:
            self.seat_mapping_spec = policy_mapping_fn
            self._give("policy_mapping_fn")
        if policies_to_train is not NotProvided:
            self.policies_to_train = policies_to_train
        return self

    def callbacks(self, callbacks_class: Any = NotProvided, **functions: Any) -> Self:
        """As RLlib's: a class or several, also by import path, or functions ``on_...``. The gauges stay.

        Raises: ConfigError: for what is no ``RLlibCallback`` class.
        """
        if callbacks_class is not NotProvided:
            named = [_callback_class(each) for each in force_list(callbacks_class)]
            callbacks_class = [*(each for each in named if each not in (LMGameGauges, RLlibCallback)), LMGameGauges]
        super().callbacks(callbacks_class, **functions)
        return self

    def set_section(self, name: str, options: Mapping[str, Any] | None) -> Self:
        """Set options of a section (``None`` turns an optional one off); existing paths become absolute.

        Raises: ConfigError: for a wrong key or value.
        """
        section = self.entry.sections[name]
        _check_no_search_space(name, options)
        self._give(name, *written(options, name))
        made, found = read_section(name, section, options, getattr(self, section.attribute))
        given = {} if made is not None and options is None else options
        gone = {f"{name}.{key}" for key in options_in(section.group, given)}
        stale = {
            key for key in self.schedule_options if key.startswith(f"{name}.") and not acts(made, key.partition(".")[2])
        }
        self._follow(gone | stale, found)
        setattr(self, section.attribute, made)
        return self

    def _set_players(self, players: dict[str, PlayerOptions]) -> None:
        self.player_options = players
        super().multi_agent(
            policies=set(players), policies_to_train=self.trained_policies(), policy_mapping_fn=_by_env_runner
        )

    # -- dictionaries -------------------------------------------------------------------------------------------

    def section_of(self, attribute: str) -> str:
        """Name of the section whose options an attribute holds."""
        return next(name for name, section in self.entry.sections.items() if section.attribute == attribute)

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Take over a mapping as written in YAML, or one of :meth:`to_dict`; of both in one, YAML's keys win.

        Raises: ConfigError: for an unknown key or a wrong value.
        """
        before, rest = dict(vars(self)), dict[str, Any]()
        own = own_attributes(self.entry.sections)
        attributes = {
            key: check_value(config_dict[key], hint, {}, f"config.{key}")
            for key, hint in own.items()
            if key in config_dict
        }
        given = attributes.pop("given_keys", None)
        for key, value in attributes.items():
            setattr(self, key, value)
        if "player_options" in attributes:
            self._set_players(self.player_options)
        for key, value in config_dict.items():
            if key in own:
                continue
            if key in self.entry.sections:
                check_keys(value, key, self.entry.groups, f"config.{key}")
                self.set_section(key, value)
            elif key == "deepspeed":
                self.deepspeed(value)
            elif key in RUNTIME_FIELDS:
                raise set_at_start(key)
            elif key == "policies":
                self.players(value)
            elif key == "policy_mapping_fn":
                if value is not None:
                    self.seat_mapping_spec = value
                    self._give(key)
            elif key == "games":
                self.games, found = read_games(value, "config.games")
                self._follow([key], found)
            elif key == "evaluation_config":
                self.evaluation_config = value
            elif key == "env":
                rest[key] = _game_named(value)
            elif key in ("callbacks", "callbacks_class"):
                self.callbacks(value)
            elif key.startswith("callbacks_on_") and isinstance(value, str):
                rest[key] = import_path(value, f"config.{key}")
            elif key in rllib_keys():
                scheduled = key.rstrip("_") in SCHEDULED_KEYS and is_meant_as_schedule(value)
                rest[key] = value if scheduled else check_rllib_key(key, value, getattr(self, key, None))
            else:
                raise unknown_at_top(str(key), self.entry.groups, rllib_keys())
        super().update_from_dict(rest)
        if given is None:
            self._give(*written(config_dict))
        else:  # A dictionary of :meth:`to_dict` has every key: those that it changes were given.
            named = {key: FIELDS[key].name if key in FIELDS else key for key in rest}
            same = {key for key, name in named.items() if name in before and before[name] == rest[key]}
            self.given_keys = tuple(key for key in self.given_keys if key not in same)
            self._give(*given)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The configuration as in every result: without what was set at the start (such as a model's bytes).

        Players stand there as ``player_options``, who takes which seat as ``seat_mapping_spec``, ``evaluation_config``
        as ``evaluation_options``, schedules of sections as ``schedule_options``, others in the place of their option.
        """
        left_out = (*RUNTIME_FIELDS, "policies", "policy_mapping_fn")
        values = {key: value for key, value in super().to_dict().items() if key not in left_out}
        flat = {
            key: each for key, each in self.schedule_options.items() if key.partition(".")[0] not in self.entry.sections
        }
        if any(key.startswith("games.") for key in flat):
            values["games"] = [game.as_mapping() for game in self.games]
        values["schedule_options"] = {key: each for key, each in self.schedule_options.items() if key not in flat}
        return with_schedules(values, flat)

    @property
    def evaluation_config(self) -> dict[str, Any] | None:
        """RLlib's part of :attr:`evaluation_options`. A mapping that is set changes what it names; ``None`` all."""
        return self.evaluation_options.of_rllib or None

    @evaluation_config.setter
    def evaluation_config(self, values: Any) -> None:
        _check_no_search_space("evaluation_config", values)
        base = None if values is None else self.evaluation_options
        self.evaluation_options = read_evaluation(values, base)
        check_measures(self.evaluation_options.measures or (), (), MEASURES.key)
        self._give(*written({"evaluation_config": values} if values else {}))

    # -- what the parts ask for ---------------------------------------------------------------------------------

    def training_games(self) -> tuple[GameConfig, ...]:
        """The games that are trained on: ``games``, or the one of ``env``."""
        return self.settings.training_games()

    def games_for_evaluation(self, split: str = "validation") -> tuple[GameConfig, ...]:
        """The games of ``evaluation_config.games``, or the training games, on the levels of ``split``.

        ``validation`` keeps a split that an evaluation game names itself.
        """
        if self.evaluation_options.games:
            return on_split(self.evaluation_options.games, split, override=split != "validation")
        return on_split(self.evaluated_games(), split, override=True)

    def evaluated_games(self) -> tuple[GameConfig, ...]:
        """The training games as an evaluation plays them, on the levels of training."""
        return tuple(game.evaluated(self.evaluation_options.sampling) for game in self.training_games())

    def trained_policies(self) -> list[str]:
        """Trained policies, in the order given."""
        return self.settings.trained_policies()

    def language_model_policies(self) -> list[str]:
        """Policies that need an engine."""
        return self.settings.language_model_policies()

    def language_model_of(self, policy: str, game: GameConfig | None = None) -> LanguageModelOptions:
        """The ``language_model`` section with what a game asks for, this policy's overrides, and the demonstrations of
        all games.
        """
        options = self.settings.model_of(policy, game)
        if not isinstance(options.demonstrations, int) or not options.demonstrations:
            return options
        games = (*self.training_games(), *self.games_for_evaluation(), *self.other_games)
        return with_demonstrations(options, games, self.seed or 0)

    def row_limits(self) -> dict[str, int]:
        """Most tokens of a row of each trained policy."""
        found = {}
        for policy in self.trained_policies():
            own = self.settings.policy(policy)
            found[policy] = own.ppo.max_row_tokens or own.lm.context_length
        return found

    def learns_observations(self, policy: str) -> bool:
        """Whether a policy learns what games say, in one of its stages."""
        if policy not in self.trained_policies():
            return False
        taught = self.supervised_options
        weight = 0.0 if taught is None else taught.env_token_loss_weight
        return max(weight, self.settings.policy(policy).ppo.env_token_loss_weight) > 0

    def agent_to_module_mapping(self) -> MappingFn:
        """The mapping function from seats to policies."""
        trained = self.trained_policies()
        others = [name for name in self.player_options if name not in trained]
        return make_mapping(self.seat_mapping_spec, [*trained, *others], len(trained))

    def module_spec(self, policy: str, inference_only: bool = False) -> RLModuleSpec:
        """RLModule of one policy."""
        from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule, ScriptedRLModule

        is_model = self.player_options[policy].player == LANGUAGE_MODEL
        model_config: dict[str, Any] = {}
        if is_model:
            options = self.language_model_of(policy)
            source = self.model_files.get(policy)
            model_dir = options.model if source is None or inference_only else source.directory()
            model_config = {"options": options, "model_dir": model_dir, "on_gpu": self.num_gpus_per_learner > 0}
            if not inference_only:
                model_config["critic"] = policy not in self.trained_policies() or PolicyFacts(self, policy).needs_critic
                model_config["action_values"] = self.values_of(policy)
                model_config["reference"] = options.lora is not None and PolicyFacts(self, policy).keeps_reference
        return RLModuleSpec(
            module_class=LanguageModelRLModule if is_model else ScriptedRLModule,
            observation_space=TEXT_SPACE,
            action_space=TEXT_SPACE,
            inference_only=inference_only,
            model_config=model_config,
        )

    def values_of(self, policy: str) -> dict[str, Any] | None:
        """Which values of tokens a policy has beside it, as the RLModule takes them; ``None``: none."""
        return None

    def get_multi_rl_module_spec(self, *, inference_only: bool | None = None, **kwargs: Any) -> MultiRLModuleSpec:
        """Modules of the learners: the trained policies."""
        return MultiRLModuleSpec(
            rl_module_specs={
                policy: self.module_spec(policy, bool(inference_only)) for policy in self.trained_policies()
            }
        )

    def get_default_rl_module_spec(self) -> MultiRLModuleSpec:
        """See :meth:`get_multi_rl_module_spec`."""
        return self.get_multi_rl_module_spec(inference_only=False)

    def get_default_learner_class(self) -> type:
        """The learner of both stages, supervised and PPO."""
        from rllib_lmgame.learners.learner import LMGameLearner

        return LMGameLearner

    # -- validation ---------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check combinations of options. Raises: ConfigError: says the key, the problem and the remedy."""
        # RLlib's advice how to leave the new stack is not given: here there is no other.
        log_once(f"{self.algo_class.__name__}_on_new_api_stack")
        if self.framework_str != "torch":
            raise ConfigError("config.framework", f"must be 'torch' with this algorithm, got {self.framework_str!r}")
        settings = self.settings
        for key in FIELDS:
            check_rllib_key(key, settings.value(key))
        if not self.in_evaluation:  # RLlib gives the configuration of its evaluation another rollout_fragment_length.
            check_without_effect(self, type(self)())
        check_overrides(self)
        check_who_learns(self)
        super().validate()
        admit(self)
        for policy in self.language_model_policies():
            self.language_model_of(policy)  # Demonstrations that cannot be made are told.

    @property
    def use_kl_loss(self) -> bool:
        """RLlib's: whether there is a ``token_ppo.kl``. Setting it puts the default one there, or takes it away."""
        options = vars(self).get("token_ppo_options")
        return options is not None and options.kl is not None

    @use_kl_loss.setter
    def use_kl_loss(self, on: bool) -> None:
        options = vars(self).get("token_ppo_options")  # RLlib sets it before there are sections.
        if options is not None and on != self.use_kl_loss:
            self.token_ppo_options = with_changes(options, {"kl": KLOptions() if on else None})
            self._give("token_ppo.kl")

    @PPOConfig.train_batch_size_per_learner.getter
    def train_batch_size_per_learner(self) -> int:
        """Only for RLlib's check that it is at least ``minibatch_size``: it is not divided among learners."""
        size: int = self._train_batch_size_per_learner or self.train_batch_size
        return size


def _check_no_search_space(section: str, options: Any) -> None:
    """Tune looks for search spaces in dictionaries, and a section's options are none."""
    found: list[tuple[Any, ...]] = []
    for name, value in options.items() if isinstance(options, Mapping) else ():
        try:
            _, drawn, grids = parse_spec_vars({name: value})
        except TypeError:
            raise ConfigError(f"config.{section}.{name}", "holds a grid_search without a list of values") from None
        found += [path for path, _ in (*drawn, *grids)]
    for path in found:
        raise ConfigError(
            ".".join(map(str, ("config", section, *path))),
            f"is a search space, which a section of a configuration object cannot hold: give tune.Tuner "
            f'param_space={{**config.to_dict(), "{section}": {{"{path[0]}": ...}}}}',
        )


def _callback_class(value: Any) -> Any:
    """A class of callbacks, also by its import path (RLlib writes a dot in place of the colon)."""
    key = "config.callbacks"
    if isinstance(value, str):
        value = import_path(value if ":" in value else ":".join(value.rsplit(".", 1)), key)
    if not callable(value) or (isinstance(value, type) and not issubclass(value, RLlibCallback)):
        raise ConfigError(key, f"expected an RLlibCallback class, or package.module:Class, got {describe(value)}")
    return value


def _game_named(env: Any) -> Any:
    """The name of a game that RLlib's forms give. Raises: ConfigError: says what to write instead."""
    key, write = "config.env", "write its import path, package.module:Name"
    if isinstance(env, str) and _global_registry.contains(ENV_CREATOR, env) and env not in games():
        raise ConfigError(key, f"{env!r} is a name of RLlib's register_env; {write}, of the class or function")
    name = getattr(env, "__qualname__", None)
    if not callable(env) or name is None:
        return env
    path = f"{env.__module__}:{name}"
    if env.__module__ == "__main__" or "<" in name or import_path(path, key) is not env:
        raise ConfigError(key, f"env runners cannot import {name}; put it at the top of a module and {write}")
    return path


def _without_specs(policies: Any) -> Any:
    """Policies as :meth:`LMGameConfig.players` takes them; RLlib's specs of whole policies must be empty."""
    if isinstance(policies, set | frozenset):
        return sorted(policies)
    given = dict(policies) if isinstance(policies, Mapping) else {}
    for name, spec in given.items():
        if isinstance(spec, PolicySpec | tuple):
            if any(vars(spec).values() if isinstance(spec, PolicySpec) else spec):
                options = "a mapping with player, trained or language_model"
                raise ConfigError(
                    f"config.policies.{name}",
                    f"is a language model, of which RLlib's PolicySpec says nothing; give {options}",
                )
            given[name] = None
    return given or policies


def _by_env_runner(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    """RLlib needs a function here; the driver maps the seats."""
    return DEFAULT_POLICY
