"""Configuration of the algorithms: RLlib's ``PPOConfig`` with sections for models, engines, rollouts and updates."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.policy.policy import PolicySpec
from ray.rllib.utils import force_list
from ray.rllib.utils.from_config import NotProvided
from ray.tune.registry import ENV_CREATOR, _global_registry
from ray.tune.search.sample import Domain
from ray.util import log_once

from rllib_lmgame.algorithms.demonstrations import with_demonstrations
from rllib_lmgame.algorithms.games import on_split
from rllib_lmgame.algorithms.validation import admit, check_overrides, check_who_learns
from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import as_data, describe
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.config.algorithms import AlgorithmEntry
from rllib_lmgame.config.rllib import FIELDS, INSTEAD, TAKEN, RLlibOptions
from rllib_lmgame.config.run import OVERRIDES, RunConfig, import_path_of, own_key, run_class, unknown_at_top
from rllib_lmgame.envs.registry import games
from rllib_lmgame.learners.microbatch import Room
from rllib_lmgame.learners.options import divides_weights
from rllib_lmgame.policies.mapping import MappingFn, make_mapping
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.options import LANGUAGE_MODEL, LanguageModelOptions, read_policies
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.records import TEXT_SPACE, GameConfig
from rllib_lmgame.telemetry.gauges import LMGameGauges
from rllib_lmgame.telemetry.quiet import leave_out_noise

if TYPE_CHECKING:
    from typing import Self

leave_out_noise()

RUNTIME_FIELDS = ("engine_names", "model_files", "other_games", "episode_log_dir", "learner_rooms", "learner_threads")
"""Set by the algorithm when it starts; not options."""

MAX_CONFIG_BYTES = 1_000_000
CONFIG_FILE = "lmgame_config.json"
"""The configuration as it would stand in YAML; written into every checkpoint, so that evaluation unpickles nothing."""

RUN = "run"
"""Key in that file which names the algorithm the configuration belongs to, as in an experiment's file."""


_TRAINING_OF_RLLIB = {
    name for each in (PPOConfig, AlgorithmConfig) for name in inspect.signature(each.training).parameters
}
"""Arguments of RLlib's ``training()``; others, and ``optimizer``, are options of the ``training`` section."""

_METHODS = "framework env_runners learners evaluation offline_data reporting checkpointing fault_tolerance multi_agent"
_NAMED = (name for method in _METHODS.split() for name in inspect.signature(getattr(PPOConfig, method)).parameters)
_STATES = ("merge_env_runner_states", "broadcast_env_runner_states")  # For env runners of one's own.
_READ = {*TAKEN, *FIELDS, *_STATES, "evaluation_config", "policies", "policy_mapping_fn", "tf_session_args"}
_STACK = dict.fromkeys(("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2"), "there is no old stack")
_SILENT = {name.strip("_") for name in (*INSTEAD, *_TRAINING_OF_RLLIB, *_NAMED)} - _READ | _STACK.keys()
"""Settings of RLlib that do nothing here."""

_OF_EVALUATION = ("explore", "rollout_fragment_length")
"""Settings without effect that RLlib itself changes in the configuration of its evaluations."""


class LMGameConfig(PPOConfig):
    """Base of the algorithms' configurations: each sets ``entry`` (its sections) and has one method per own section.

    ``algo_class`` is by default the algorithm of ``entry``. ``run`` has all options. RLlib's own methods and attributes
    change it, and it sets RLlib's attributes.
    """

    entry: ClassVar[AlgorithmEntry]
    follows_schedules: ClassVar[bool] = False
    """Whether the algorithm knows of ``schedules``."""
    run: RunConfig

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class or import_path(self.entry.algorithm, "run"))
        self.engine_names: dict[str, list[str]] = {}
        self.model_files: dict[str, ModelFiles] = {}
        self.other_games: tuple[GameConfig, ...] = ()
        self.episode_log_dir: str | None = None
        self.learner_rooms: dict[str, Room] = {}
        self.learner_threads: int | None = None

        # Defaults that suit language models; RLlib's own are for small networks and fast environments.
        self.env_runner_cls = TextGameEnvRunner
        self.batch_mode = "complete_episodes"
        self.rollout_fragment_length = "auto"
        self.add_default_connectors_to_learner_pipeline = False
        self.merge_env_runner_states = self.broadcast_env_runner_states = False  # RLlib would wait for games in play.
        self.evaluation_duration_unit = "episodes"
        self.callbacks_class = [LMGameGauges]
        self._take(run_class(self.entry)().at({}))

    def __setattr__(self, key: str, value: Any) -> None:
        """RLlib's own methods set attributes: those that are options change ``run``; search spaces wait for Tune.

        Raises: ConfigError: for one that does nothing here.
        """
        name = key.strip("_")
        given = name in _SILENT and name not in _OF_EVALUATION and "run" in vars(self)
        if given and value != vars(self).get(key):
            hint = (INSTEAD | _STACK).get(name)
            raise ConfigError(f"config.{name}", "has no effect here" + (f"; {hint}" if hint else ""))
        if callable(vars(LMGameConfig).get(key)) and not callable(value):
            raise ConfigError(f"config.{key}", f"has no effect here: call config.{key}(...)")
        if key in RLlibOptions.model_fields and "run" in vars(self) and not (_is_space(value) or self._is_frozen):
            if _is_space(vars(self)[key]):
                super().__setattr__(key, None)
            self.change({key: value})
        else:
            super().__setattr__(key, value)

    def change(self, values: Mapping[str, Any]) -> Self:
        """Set options as a file has them; existing paths become absolute.

        Raises: ConfigError: for wrong keys, types or ranges; all of them.
        """
        return self._take(self.run.with_values(values))

    def _take(self, run: RunConfig) -> Self:
        before = vars(self).get("run")
        self.run = run
        for name in RLlibOptions.model_fields:
            if not _is_space(vars(self).get(name)):
                super().__setattr__(name, getattr(run, name))
        if before is None or before.policies != run.policies:
            super().multi_agent(
                policies=set(run.policies), policies_to_train=self.trained_policies(), policy_mapping_fn=_by_env_runner
            )
        return self

    @property
    def games(self) -> tuple[GameConfig, ...]:
        """``games`` as given; without the one of ``env``."""
        return self.run.written.games

    @games.setter
    def games(self, games: Any) -> None:
        self.change({"games": games})

    # -- sections -----------------------------------------------------------------------------------------------

    def language_model(self, **options: Any) -> Self:
        """Which model, and how it is talked to: :class:`~rllib_lmgame.policies.options.LanguageModelOptions`."""
        return self.change({"language_model": options})

    def inference(self, **options: Any) -> Self:
        """The engines: :class:`~rllib_lmgame.inference.options.InferenceOptions`."""
        return self.change({"inference": options})

    def text_rollouts(self, **options: Any) -> Self:
        """How episodes are played: :class:`~rllib_lmgame.rollouts.options.TextRolloutOptions`."""
        return self.change({"text_rollouts": options})

    def deepspeed(self, config: Mapping[str, Any] | None = None, **options: Any) -> Self:
        """Put a DeepSpeed engine into each learner; no configuration at all turns it off.

        Args:
            options: Keys of its configuration, e.g. ``zero_optimization={"stage": 2}``.
        """
        return self.change({"deepspeed": {**(config or {}), **options} if options else config})

    def on_collapse(self, **options: Any) -> Self:
        """What a trial does that has lost what it learned: :class:`~rllib_lmgame.measures.collapse.CollapseOptions`."""
        return self.change({"on_collapse": options})

    def players(self, policies: Mapping[str, Any] | list[str], policy_mapping_fn: Any = None) -> Self:
        """Who plays: policies by name, and who takes which seat.

        Args:
            policies: Names, or name -> :class:`~rllib_lmgame.policies.options.PlayerOptions` fields.
            policy_mapping_fn: See :func:`~rllib_lmgame.policies.mapping.make_mapping`.
        """
        mapping = {} if policy_mapping_fn is None else {"policy_mapping_fn": policy_mapping_fn}
        return self.change({"policies": policies, **mapping})

    def environment(self, env: Any = NotProvided, *, env_config: Any = NotProvided, **options: Any) -> Self:
        """As RLlib's; ``env`` names a game, or is its class or a function of a module. Its options may be schedules.

        Raises: ConfigError: for what env runners could not import.
        """
        if env is not NotProvided:
            self.change({"env": _game_named(env)})
        if env_config is not NotProvided:
            self.change({"env_config": {**self.run.written.env_config, **env_config}})
        super().environment(**options)
        return self

    def training(self, *, model: Any = NotProvided, **options: Any) -> Self:
        """As RLlib's, and the ``training`` section: :class:`~rllib_lmgame.learners.options.TrainingOptions`.

        Raises: ConfigError: for another ``model``, which RLlib would change in place.
        """
        if model is not NotProvided and {**self.model, **model} != self.model:
            raise ConfigError("config.model", f"has no effect here; {INSTEAD['model']}")
        ours = [key for key in options if key not in _TRAINING_OF_RLLIB or (key == "optimizer" and options[key])]
        if section := {key: options.pop(key) for key in ours}:
            self.change({"training": section})
        super().training(**options)
        return self

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
            named = read_policies(_without_specs(policies))
            if isinstance(policies_to_train, list | tuple | set | frozenset):
                for unknown in (name for name in policies_to_train if name not in named):
                    hint = did_you_mean(unknown, named, f"policies: {', '.join(named)}")
                    raise ConfigError("config.policies_to_train", f"{unknown!r} is no policy; {hint}")
                learn = {name: {"trained": name in policies_to_train} for name in named}
                models = (name for name, each in named.items() if each.player == LANGUAGE_MODEL)
                named |= {name: named[name].model_copy(update=learn[name]) for name in models}
            self.players(named)
        if policy_mapping_fn is not NotProvided:
            self.change({"policy_mapping_fn": policy_mapping_fn})
        if policies_to_train is not NotProvided:
            self.policies_to_train = policies_to_train
        return self

    def rl_module(self, *, algorithm_config_overrides_per_module: Any = NotProvided, **options: Any) -> Self:
        """As RLlib's: policies may have options of their own."""
        if algorithm_config_overrides_per_module is not NotProvided:
            before = self.algorithm_config_overrides_per_module
            self.change({OVERRIDES: {**before, **algorithm_config_overrides_per_module}})
        super().rl_module(**options)
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

    # -- dictionaries -------------------------------------------------------------------------------------------

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Take over a mapping as written in YAML, or one of :meth:`to_dict`.

        Raises: ConfigError: for an unknown key or a wrong value.
        """
        own, rest = dict[str, Any](), dict[str, Any]()
        for key, value in config_dict.items():
            if key in RUNTIME_FIELDS:
                raise ConfigError(f"config.{key}", "is set by the algorithm when it starts; leave it out")
            (own if own_key(type(self.run), key) else rest)[key] = value
        if "env" in own:
            own["env"] = _game_named(own["env"])
        unknown = [key for key in rest if not self._is_rllibs(str(key))]
        if unknown:
            raise ConfigError.together(unknown_at_top(str(key), self.entry.groups) for key in unknown)
        self.change(own)
        for key in [key for key in ("callbacks", "callbacks_class") if key in rest]:
            self.callbacks(rest.pop(key))
        for key, value in rest.items():
            if str(key).startswith("callbacks_on_"):
                rest[key] = _callback_function(value, f"config.{key}")
        return super().update_from_dict(rest)

    def serialize(self) -> dict[str, Any]:
        """:meth:`to_dict` without RLlib's defaults, as JSON holds it; :meth:`update_from_dict` takes it."""
        defaults, own = type(self)().to_dict(), as_data(self.run.written)
        given = {key: x for key, x in self.to_dict().items() if key in own or x != defaults.get(key)}
        return dict(json.loads(json.dumps(given, default=import_path_of)))

    def _is_rllibs(self, key: str) -> bool:
        """Whether it is a key of RLlib's, or put there by Tune."""
        attribute = self._translate_special_keys(key, warn_deprecated=False)
        known = attribute in vars(self) or f"_{attribute}" in vars(self)
        fixed = isinstance(each := getattr(type(self), attribute, None), property) and each.fset is None
        return key in TAKEN or key.startswith("__") or (known and not fixed and key != "run")

    def to_dict(self) -> dict[str, Any]:
        """The configuration as in every result: RLlib's keys, and as a file has them the others that were given."""
        left_out = (*RUNTIME_FIELDS, "run", "policies", "policy_mapping_fn")
        values = {key: value for key, value in super().to_dict().items() if key not in left_out}
        spaces = {key: value for key, value in values.items() if _is_space(value)}
        return values | as_data(self.run.written) | spaces

    @property
    def evaluation_config(self) -> dict[str, Any] | None:
        """RLlib's part of ``run.evaluation_config``. A mapping that is set changes what it names; ``None`` all."""
        return self.run.evaluation_config.of_rllib or None

    @evaluation_config.setter
    def evaluation_config(self, values: Any) -> None:
        if "run" in vars(self):
            self.change({"evaluation_config": values})

    # -- what the parts ask for ---------------------------------------------------------------------------------

    def training_games(self) -> tuple[GameConfig, ...]:
        """The games that are trained on: ``games``, or the one of ``env``."""
        return self.run.training_games()

    def games_for_evaluation(self, split: str = "validation") -> tuple[GameConfig, ...]:
        """The games of ``evaluation_config.games``, or the training games, on the levels of ``split``.

        ``validation`` keeps a split that an evaluation game names itself.
        """
        if self.run.evaluation_config.games:
            return on_split(self.run.evaluation_config.games, split, override=split != "validation")
        return on_split(self.evaluated_games(), split, override=True)

    def evaluated_games(self) -> tuple[GameConfig, ...]:
        """The training games as an evaluation plays them, on the levels of training."""
        return tuple(game.evaluated(self.run.evaluation_config.sampling) for game in self.training_games())

    def trained_policies(self) -> list[str]:
        """Trained policies, in the order given."""
        return self.run.trained_policies()

    def language_model_policies(self) -> list[str]:
        """Policies that need an engine."""
        return self.run.language_model_policies()

    def language_model_of(self, policy: str, game: GameConfig | None = None) -> LanguageModelOptions:
        """The ``language_model`` section with what a game asks for, this policy's overrides, and the demonstrations of
        all games.
        """
        options = self.run.model_of(policy, game)
        if not isinstance(options.demonstrations, int) or not options.demonstrations:
            return options
        games = (*self.training_games(), *self.games_for_evaluation(), *self.other_games)
        return with_demonstrations(options, games, self.seed or 0)

    def row_limits(self) -> dict[str, int]:
        """Most tokens of a row of each trained policy."""
        found = {}
        for policy in self.trained_policies():
            own = self.run.policy(policy)
            found[policy] = own.training.max_row_tokens or own.language_model.context_length
        return found

    def learns_observations(self, policy: str) -> bool:
        """Whether a policy learns what games say, in one of its stages."""
        if policy not in self.trained_policies():
            return False
        taught = self.run.supervised_stage
        weight = 0.0 if taught is None else taught.env_token_loss_weight
        return max(weight, self.run.policy(policy).training.env_token_loss_weight) > 0

    def agent_to_module_mapping(self) -> MappingFn:
        trained = self.trained_policies()
        others = [name for name in self.run.policies if name not in trained]
        return make_mapping(self.run.policy_mapping_fn, [*trained, *others], len(trained))

    def module_spec(self, policy: str, inference_only: bool = False) -> RLModuleSpec:
        from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule, ScriptedRLModule

        is_model = self.run.policies[policy].player == LANGUAGE_MODEL
        model_config: dict[str, Any] = {}
        if is_model:
            options = self.language_model_of(policy)
            source = self.model_files.get(policy)
            model_dir = options.model if source is None or inference_only else source.directory()
            model_config = {"options": options, "model_dir": model_dir, "on_gpu": self.num_gpus_per_learner > 0}
            if not inference_only:
                model_config["critic"] = policy not in self.trained_policies() or self.run.needs_critic(policy)
                model_config["action_values"] = self.values_of(policy)
                # Then no learner ever has all weights.
                model_config["empty"] = divides_weights(self.run.deepspeed)
                model_config["reference"] = options.lora is not None and self.run.needs_reference(policy)
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
        return self.get_multi_rl_module_spec(inference_only=False)

    def get_default_learner_class(self) -> type:
        from rllib_lmgame.learners.learner import LMGameLearner

        return LMGameLearner

    # -- validation ---------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check combinations of options. Raises: ConfigError: says the key, the problem and the remedy."""
        # RLlib's advice how to leave the new stack is not given: here there is no other.
        log_once(f"{self.algo_class.__name__}_on_new_api_stack")
        if self.framework_str != "torch":
            raise ConfigError("config.framework", f"must be 'torch' with this algorithm, got {self.framework_str!r}")
        changed = {"explore": not self.explore, "rollout_fragment_length": self.rollout_fragment_length != "auto"}
        for key in (key for key in _OF_EVALUATION if changed[key] and not self.in_evaluation):
            raise ConfigError(f"config.{key}", f"has no effect here; {INSTEAD[key]}")
        check_overrides(self)
        check_who_learns(self)
        super().validate()
        admit(self)
        for policy in self.language_model_policies():
            self.language_model_of(policy)  # Demonstrations that cannot be made are told.

    @property
    def use_kl_loss(self) -> bool:
        """RLlib's: whether there is a ``training.kl``. Setting it puts the default one there, or takes it away."""
        return "run" in vars(self) and self.run.training.kl is not None

    @use_kl_loss.setter
    def use_kl_loss(self, on: bool) -> None:
        if "run" in vars(self) and on != self.use_kl_loss:  # RLlib sets it before there are options.
            self.change({"training": {"kl": {} if on else None}})

    @PPOConfig.train_batch_size_per_learner.getter
    def train_batch_size_per_learner(self) -> int:
        """Only for RLlib's check that it is at least ``minibatch_size``: it is not divided among learners."""
        size: int = self._train_batch_size_per_learner or self.train_batch_size
        return size


def _is_space(value: Any) -> bool:
    return isinstance(value, Domain) or (isinstance(value, dict) and "grid_search" in value)


def _callback_class(value: Any) -> Any:
    key = "config.callbacks"
    if isinstance(value, str):
        value = import_path(value if ":" in value else ":".join(value.rsplit(".", 1)), key)
    if not callable(value) or (isinstance(value, type) and not issubclass(value, RLlibCallback)):
        raise ConfigError(key, f"expected an RLlibCallback class, or package.module:Class, got {describe(value)}")
    return value


def _callback_function(value: Any, key: str) -> Any:
    value = import_path(value, key) if isinstance(value, str) else value
    if not all(map(callable, value if isinstance(value, list | tuple) else [] if value is None else [value])):
        raise ConfigError(key, f"expected package.module:function, got {describe(value)}")
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
                say = "RLlib's PolicySpec says nothing of it; give a mapping with player, trained or language_model"
                raise ConfigError(f"config.policies.{name}", say)
            given[name] = None
    return given or policies


def _by_env_runner(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    """RLlib needs a function here; the driver maps the seats."""
    return "player"
