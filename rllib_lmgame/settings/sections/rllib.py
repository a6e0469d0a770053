"""RLlib's own configuration keys: which exist, and what types and ranges they have."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import operator
import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import (
    LISTED,
    NAMED,
    Group,
    Holds,
    Scheduled,
    check_value,
    declared,
    limits,
    option,
    values_of,
)
from rllib_lmgame.base.results import is_metric
from rllib_lmgame.base.schedule import ScheduleOptions, check_numbers, check_points, is_schedule, read_schedule
from rllib_lmgame.settings.plugins import MEASURES
from rllib_lmgame.settings.sections.games import GameConfig
from rllib_lmgame.settings.sections.language_model import PlayerOptions
from rllib_lmgame.settings.trust import is_name, is_number

_EXTRA_KEYS = (
    "lambda",
    "callbacks",
    "callbacks_class",
    "multiagent",
    "train_batch_size_per_learner",
    "minibatch_size",
    "num_epochs",
    "lr",
    "__trial_info__",
    "__stdout_file__",
    "__stderr_file__",
    "_enable_new_api_stack",
    "_enable_rl_module_api",
    "_enable_learner_api",
)
"""Valid though not attributes: translated by RLlib, or put there by Tune."""


class RLlibOptions(Group):
    """RLlib's own keys that act here, with this package's defaults; what else ``PPOConfig`` knows is taken, too."""

    env: str | None = option(
        None, "Game: an id of `rllib games list`, or `package.module:Class`. `games` takes several.", stranger=False
    )
    env_config: dict[str, Any] = option({}, "Options of the game, see [games](games.md).", stranger=False)
    seed: int | None = option(0, "Seed of levels, initial weights and the order of minibatches.", ge=0)
    num_env_runners: int = option(
        0, "Processes that play games; 0 plays in the algorithm's own process.", ge=0, le=10_000
    )
    num_envs_per_env_runner: int = option(
        64, "Games one env runner plays at once, each in a coroutine of its own.", ge=1, le=100_000
    )
    num_cpus_per_env_runner: float = option(1, "CPUs reserved per env runner.", ge=0)
    num_gpus_per_env_runner: float = option(0, "GPUs reserved per env runner.", ge=0)
    num_cpus_for_main_process: float = option(1, "CPUs reserved for the algorithm's own process.", ge=0)
    num_learners: int = option(0, "Learner processes; 0 trains in the algorithm's own process.", ge=0, le=10_000)
    num_cpus_per_learner: int | float | Literal["auto"] = option("auto", "CPUs reserved per learner.", ge=0)
    num_gpus_per_learner: float = option(
        0, "GPUs reserved per learner; a fraction leaves room for an engine on the same GPU.", ge=0
    )
    lr: Scheduled[float | list[list[float]]] = option(
        1e-6,
        "Learning rate, or a schedule `[[environment steps, value], ...]` that begins at step 0.",
        gt=0,
    )
    gamma: Scheduled[float] = option(
        1.0,
        "Discount, per action token or per turn, as the [estimator](parts.md#advantage-estimators) takes it.",
        ge=0,
        le=1,
    )
    lambda_: Scheduled[float] = option(0.95, "GAE's lambda, likewise.", ge=0, le=1)
    num_epochs: Scheduled[int] = option(1, "Passes over the episodes of an iteration.", ge=1, le=10_000)
    grad_clip: float | None = option(1.0, "Bound on the global gradient norm; null is off.", gt=0)
    grad_clip_by: str = option(
        "global_norm",
        "What `grad_clip` bounds; language models take `global_norm` alone.",
        choices=("global_norm", "norm", "value"),
    )
    vf_loss_coeff: Scheduled[float] = option(0.2, "Weight of the value loss.", ge=0)
    entropy_coeff: Scheduled[float | list[list[float]]] = option(
        0.001, "Weight of the entropy bonus, or a schedule.", ge=0
    )
    kl_coeff: float = option(
        0.001, "Initial weight of the penalty `token_ppo.kl`; RLlib adapts it to `kl_target`.", ge=0
    )
    kl_target: float = option(
        0.01, "The coefficient is raised by half above twice this KL, and halved below half of it.", gt=0
    )
    evaluation_interval: int | None = option(
        None, "Training iterations between evaluations; null evaluates never.", ge=0
    )
    evaluation_duration: int = option(128, "Episodes of every evaluation game.", ge=1, le=1_000_000)
    evaluation_num_env_runners: int = option(
        0, "Processes that play evaluation games; 0 plays where training games are played.", ge=0, le=10_000
    )
    sample_timeout_s: float | None = option(3600.0, "Longest wait for the env runners of one round, in seconds.", gt=0)
    evaluation_sample_timeout_s: float | None = option(3600.0, "The same of an evaluation.", gt=0)
    restart_failed_env_runners: bool = option(True, "Start a lost env runner again.")
    delay_between_env_runner_restarts_s: float = option(1.0, "Pause before that, in seconds.", ge=0)


_SEATS = """Who takes which seat:

- `self_play` (or `shared`, the default): the trained policy plays all of them; several take turns.
- `per_role`: the policy called like the role; else the first role has the first policy, and so on.
- `versus`: a trained policy in every seat as often, in the others policies that are not trained. \
`{type: versus, opponents: {minimax: 3, random: 1}}` weighs them; here the policies are `{player: {}, \
minimax: {player: minimax}, random: {player: random}}`.
- `random_seat`: drawn per level; a trained policy always sits, and with fewer seats than policies the \
others take turns.
- `league`: the policy and its past versions. The section `config.league` alone turns it on.
- A mapping from agent id or role to policy; `"*"` is any other seat.
- `package.module:function`."""


class EvaluationOptions(Group):
    """Keys of ``evaluation_config``: what evaluation can have of its own. The last four are RLlib's."""

    games: list[Any] | None = option(
        None,
        "Games of the evaluation, as `games`; null: those of the training, on other levels.",
        holds=Holds(GameConfig, LISTED),
    )
    measures: list[Any] | None = option(
        None,
        f"[Measures](monitoring.md#evaluations): {MEASURES.listed()}, or `{{type: against, player: solver}}`.",
        stranger=False,
    )
    temperature: float | None = option(None, "Sampling temperature; null is that of training.", ge=0)
    at_start: bool = option(False, "Also evaluate before the first update, as result 0.")
    samples: int = option(1, "Episodes on each level; `pass_at_k` counts levels with a success among them.", ge=1)
    best: str | None = option(
        None,
        "Metric of an evaluation; the checkpoint with the best value so far is kept as `best` in the trial's "
        "directory. null keeps none.",
        stranger=is_metric,
    )
    best_order: str = option("max", "Whether a high or a low value of it is good.", choices=("max", "min"))
    explore: bool | None = option(None, "`false` plays greedily.")
    num_envs_per_env_runner: int | None = option(
        None, "Games one evaluation env runner plays at once; null: as in training.", ge=1, le=100_000
    )
    num_cpus_per_env_runner: float | None = option(None, "CPUs reserved per evaluation env runner, likewise.", ge=0)
    num_gpus_per_env_runner: float | None = option(None, "GPUs, likewise.", ge=0)
    custom_resources_per_env_runner: dict[str, float] | None = option(
        None, "Ray's custom resources, likewise.", ge=0, stranger=False
    )

    @property
    def sampling(self) -> float | None:
        """Temperature that evaluation samples at; ``None`` is that of training."""
        return 0.0 if self.explore is False else self.temperature

    @property
    def of_rllib(self) -> dict[str, Any]:
        """What RLlib is told of it."""
        own = ("games", "measures", "temperature", "at_start", "samples", "best", "best_order")
        return {key: value for key, value in values_of(self).items() if key not in own and value is not None}


def is_seating(value: Any) -> bool:
    """Whether ``policy_mapping_fn`` is a name, or names what is looked up, with shares."""
    return is_name(value) or (
        isinstance(value, Mapping)
        and all(
            is_name(each) or (isinstance(each, Mapping) and is_name(list(each)) and is_number(each))
            for each in value.values()
        )
    )


class OtherOptions(Group):
    """Keys of ``config`` that are neither sections nor RLlib's, and ``evaluation_config``."""

    policies: list[Any] | dict[str, Any] | None = option(
        {"player": None},
        "Who plays: a list of names, or a mapping from names to their options. See `policy_mapping_fn`.",
        holds=Holds(PlayerOptions, NAMED),
    )
    policy_mapping_fn: str | dict[str, Any] | None = option(None, _SEATS, stranger=is_seating)
    games: list[Any] = option(
        [],
        "A list of game names or of mappings with these keys; instead of `env`, to train on several.",
        holds=Holds(GameConfig, LISTED),
    )
    evaluation_config: dict[str, Any] | None = option(
        None, "What evaluation has of its own.", holds=Holds(EvaluationOptions)
    )
    deepspeed: dict[str, Any] | bool | None = option(None, "DeepSpeed's own configuration.", stranger=False)


FIELDS = declared(RLlibOptions)
"""Key -> its declaration."""

SCHEDULED_KEYS = tuple(key for key, each in FIELDS.items() if each.scheduled)
"""Those that may follow a schedule during a run."""

FLAT_KEYS = (*FIELDS, *declared(OtherOptions), "lambda_", "callbacks")
"""Keys beside the sections that a user is likely to mean; :func:`rllib_keys` knows all of RLlib's, but imports it."""

WITHOUT_EFFECT = {
    "clip_param": "set token_ppo.policy_loss.clip_low and token_ppo.policy_loss.clip_high",
    "vf_clip_param": "set token_ppo.critic.clip",
    "use_gae": "set token_ppo.advantage_estimator",
    "use_critic": "set token_ppo.advantage_estimator",
    "train_batch_size": "a batch is made of whole episodes; set text_rollouts.episodes_per_iteration",
    "train_batch_size_per_learner": "a batch is made of whole episodes; set text_rollouts.episodes_per_iteration",
    "minibatch_size": "set token_ppo.num_minibatches",
    "shuffle_batch_per_epoch": "rows are shuffled in every epoch",
    "rollout_fragment_length": "episodes are played to their end; set text_rollouts.episodes_per_iteration",
    "model": "set language_model",
    "num_gpus": "set num_gpus_per_learner, and inference.num_gpus_per_engine for the engines",
    "clip_rewards": "set text_rollouts.reward_scale",
    "learner_class": "set token_ppo.policy_loss to a loss of your own, or write an algorithm (docs/extending.md)",
    "optimizer": "the optimizer is AdamW; set lr, token_ppo.adam_betas and token_ppo.weight_decay",
    "log_gradients": "learners/<policy>/grad_norm is always there",
    "custom_evaluation_function": "set evaluation_config.measures to a measure of your own",
    "episode_lookback_horizon": "set language_model.history",
    "action_mask_key": "set text_rollouts.constrained_decoding",
    "export_native_model_files": "every checkpoint has the model in hf/",
    "checkpoint_trainable_policies_only": "a checkpoint has the weights of trained policies alone",
    "off_policy_estimation_methods": "set evaluation_config.measures",
    "lr_schedule": "give lr a schedule, or a list of [environment steps, value]",
    "entropy_coeff_schedule": "give entropy_coeff a schedule, or a list of [environment steps, value]",
} | {
    key: instead
    for instead, keys in (
        ("replies are sampled; set inference.temperature, or evaluation_config.explore", "explore exploration_config"),
        (
            "observations and actions are text; the chat format is set in language_model",
            "observation_filter observation_space action_space clip_actions normalize_actions preprocessor_pref "
            "env_to_module_connector add_default_connectors_to_env_to_module_pipeline module_to_env_connector "
            "add_default_connectors_to_module_to_env_pipeline observation_fn",
        ),
        (
            "learners build rows of tokens themselves; set token_ppo",
            "learner_connector torch_ddp_kwargs torch_skip_nan_gradients",
        ),
        ("set language_model", "model_config rl_module_spec"),
        ("set lr and deepspeed", "torch_grad_scaler_class torch_lr_scheduler_classes"),
        (
            "models run as PyTorch has them",
            "torch_compile_learner torch_compile_learner_what_to_compile torch_compile_learner_dynamo_backend "
            "torch_compile_learner_dynamo_mode torch_compile_worker torch_compile_worker_dynamo_backend "
            "torch_compile_worker_dynamo_mode tf_session_args local_tf_session_args eager_tracing eager_max_retraces",
        ),
        (
            "files are read by warm_start.data, or by supervised.data of LMGameSFT",
            "input offline_data_class input_read_method input_read_method_kwargs input_read_schema "
            "input_read_episodes input_read_sample_batches input_read_batch_size input_filesystem "
            "input_filesystem_kwargs input_compress_columns input_spaces_jsonable materialize_data "
            "materialize_mapped_data map_batches_kwargs iter_batches_kwargs ignore_final_observation prelearner_class "
            "prelearner_buffer_class prelearner_buffer_kwargs prelearner_module_synch_period "
            "prelearner_use_recorded_module_states dataset_num_iters_per_learner input_config "
            "actions_in_input_normalized postprocess_inputs shuffle_buffer_size offline_sampling "
            "offline_evaluation_interval num_offline_eval_runners offline_evaluation_type offline_eval_runner_class "
            "offline_loss_for_module_fn offline_evaluation_duration offline_evaluation_parallel_to_training "
            "offline_eval_batch_size_per_runner dataset_num_iters_per_eval_runner offline_evaluation_timeout_s "
            "num_cpus_per_offline_eval_runner num_gpus_per_offline_eval_runner "
            "custom_resources_per_offline_eval_runner restart_failed_offline_eval_runners "
            "ignore_offline_eval_runner_failures max_num_offline_eval_runner_restarts "
            "offline_eval_runner_restore_timeout_s max_requests_in_flight_per_offline_eval_runner "
            "validate_offline_eval_runners_after_construction offline_eval_runner_health_probe_timeout_s "
            "offline_eval_rl_module_inference_only broadcast_offline_eval_runner_states",
        ),
        (
            "episodes are logged by text_rollouts.episode_log",
            "output output_config output_compress_columns output_max_file_size output_max_rows_per_file "
            "output_write_remaining_data output_write_method output_write_method_kwargs output_filesystem "
            "output_filesystem_kwargs output_write_episodes",
        ),
        (
            "games are played by coroutines of one process; set num_envs_per_env_runner and num_env_runners",
            "gym_env_vectorize_mode remote_worker_envs remote_env_batch_wait_ms restart_failed_sub_environments",
        ),
        ("`rllib view` shows episodes", "render_env"),
        ("`rllib games check` checks a game", "disable_env_checking"),
        ("nothing of an episode is sent but its texts and token ids", "compress_observations episodes_to_numpy"),
        (
            "env runners keep no state; engines have the weights",
            "merge_env_runner_states broadcast_env_runner_states use_env_runner_state_server "
            "env_runner_state_server_max_concurrency create_env_on_local_worker sample_collector "
            "update_worker_filter_stats use_worker_filter_stats sampler_perf_stats_ema_coef fake_sampler",
        ),
        ("set policies", "policy_map_capacity policy_states_are_swappable"),
        (
            "an evaluation plays evaluation_duration episodes of each game",
            "evaluation_auto_duration_min_env_steps_per_sample evaluation_auto_duration_max_env_steps_per_sample "
            "evaluation_force_reset_envs_before_iteration evaluation_unhealthy_workers_timeout_s "
            "evaluation_error_after_n_consecutive_skips ope_split_batch_by_episode",
        ),
        (
            "a result is of its own iteration",
            "metrics_num_episodes_for_smoothing metrics_episode_collection_timeout_s keep_per_episode_custom_metrics",
        ),
    )
    for key in keys.split()
}
"""Keys of RLlib's PPO that nothing here reads, with what does it instead."""

OTHER_NAMES = {
    "learning_rate": "lr",
    "max_grad_norm": "grad_clip",
    "max_norm": "grad_clip",
    "gae_lambda": "lambda",
    "ent_coef": "entropy_coeff",
    "vf_coef": "vf_loss_coeff",
    "kl_coef": "token_ppo.kl.coef",
    "beta": "token_ppo.kl.coef",
    "ppo_epochs": "num_epochs",
    "num_ppo_epochs": "num_epochs",
    "num_train_epochs": "num_epochs",
    "clip_range": "token_ppo.policy_loss.clip_high",
    "cliprange": "token_ppo.policy_loss.clip_high",
    "epsilon": "token_ppo.policy_loss.clip_high",
    "num_generations": "text_rollouts.group_size",
}
"""What other trainers (Transformers, TRL, Stable-Baselines3) call the same thing."""


@cache
def rllib_keys() -> frozenset[str]:
    """Every key RLlib's ``PPOConfig`` knows."""
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig()
    return frozenset({*vars(config), *config.to_dict(), *_EXTRA_KEYS})


_KINDS: dict[str, Any] = {
    "callbacks_class": Any,  # Also the path of a class.
    "algorithm_config_overrides_per_module": dict[str, dict[str, Any]],
}


@cache
def rllib_kinds() -> dict[str, Any]:
    """Key -> its type, as RLlib's methods annotate their arguments."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.utils.from_config import NotProvided

    methods = [
        inspect.signature(each) for cls in PPOConfig.__mro__ for each in vars(cls).values() if inspect.isfunction(each)
    ]
    arguments = [each for method in methods for each in method.parameters.values() if each.default is NotProvided]
    found = {each.name.rstrip("_"): _plain(each.annotation) for each in arguments}
    found |= {f"callbacks_{name}": kind for name, kind in found.items() if name.startswith("on_")}
    found |= {name: dict[str, float] | None for name in found if name.startswith("custom_resources_")}
    return found | _KINDS


def _plain(hint: Any) -> Any:
    """A type as far as :func:`check_value` can ask for it: of mappings and lists not what is in them."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [_plain(arm) for arm in typing.get_args(hint)]
        return Any if Any in arms else functools.reduce(operator.or_, arms)
    kind = typing.get_origin(hint) or hint
    return kind if isinstance(kind, type) else Any


@cache
def rllib_words() -> frozenset[str]:
    """All words in the source of RLlib's ``PPOConfig``, read without import: a superset of :func:`rllib_keys`."""
    ray = importlib.util.find_spec("ray")
    root = Path(next(iter((ray and ray.submodule_search_locations) or ()), ""))
    files = [root / "rllib" / "algorithms" / name for name in ("algorithm_config.py", "ppo/ppo.py")]
    return frozenset(
        re.findall(r"\w+", " ".join(file.read_text(encoding="utf-8") for file in files if file.is_file()))
    ).union(_EXTRA_KEYS)


def key_rule(key: str) -> tuple[Any, Mapping[str, Any]]:
    """Type of a number among RLlib's keys, and its limits in a schedule; a learning rate may fall to 0 there."""
    return (float, limits(ge=0)) if key in ("lr", "entropy_coeff") else (FIELDS[key].hint, FIELDS[key].says)


def schedule_of(key: str, value: Any) -> ScheduleOptions:
    """The schedule in the place of a number. Raises: ConfigError: says what is wrong."""
    options = read_schedule(value, f"config.{key}")
    check_numbers(options, *key_rule(key), f"config.{key}")
    return options


def check_rllib_key(key: str, value: Any, default: Any = None) -> Any:
    """Check type and range of an RLlib key; an undeclared one by its default and its kind. Raises: ConfigError."""
    path, key = f"config.{key}", key.rstrip("_")
    if key in FIELDS:
        if is_schedule(value):
            raise ConfigError(path, f"cannot change during a run; of RLlib's keys {', '.join(SCHEDULED_KEYS)} can")
        if isinstance(value, list | tuple) and key in ("lr", "entropy_coeff"):
            return _check_schedule(value, path)
        return check_value(value, FIELDS[key].hint, FIELDS[key].says, path)
    if isinstance(default, bool) and not isinstance(value, bool):
        return check_value(value, bool, {}, path)
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    if is_number and isinstance(value, str) and value != "auto":
        return check_value(value, float, {}, path)
    return value if value == default else check_value(value, rllib_kinds().get(key, Any), {}, path)


def without_effect(key: str) -> ConfigError:
    """The error for a key of RLlib's that nothing here reads."""
    return ConfigError(f"config.{key}", f"has no effect with this algorithm: {WITHOUT_EFFECT[key]}")


def check_without_effect(config: Any, defaults: Any) -> None:
    """Raise ConfigError if RLlib's methods (``training(train_batch_size=...)``) set what nothing here reads."""
    for key in WITHOUT_EFFECT:
        attribute = next(name for name in (f"_{key}", key, f"{key}_") if name in vars(defaults))
        default = getattr(defaults, attribute, None)
        if _changes(getattr(config, attribute, None), default) and not (key == "learner_class" and _learns(config)):
            raise without_effect(key)


def _learns(config: Any) -> bool:
    """Whether a learner class is one of this package's learners, or derived from it."""
    found: bool = issubclass(config.learner_class, config.get_default_learner_class())
    return found


def _changes(value: Any, default: Any) -> bool:
    """Whether a value is another than the default; of a mapping only what it names counts."""
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return any(_changes(item, default.get(name)) for name, item in value.items())
    return bool(value != default)


def _check_schedule(value: Sequence[Any], path: str) -> Sequence[Any]:
    """RLlib's schedules: ``[[step, value], ...]``, two points or more, the first at step 0; a value may fall to 0."""
    for position, point in enumerate(value):
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise ConfigError(
                f"{path}[{position}]", f"a schedule is a list of [environment steps, value], got {point!r}"
            )
    if not value or value[0][0] != 0:
        raise ConfigError(path, "a schedule must begin at step 0")
    check_points(value, path)
    for position, (_, at_step) in enumerate(value):
        check_value(at_step, float, limits(ge=0), f"{path}[{position}]")
    if len(value) < 2:
        raise ConfigError(path, f"a schedule has two points or more; for a constant write {value[0][1]:g}")
    return value


def read_deepspeed(value: Any) -> dict[str, Any] | None:
    """DeepSpeed's configuration; ``None`` without DeepSpeed, ``true`` has none of its own."""
    if value is None or value is False:
        return None
    if not isinstance(value, Mapping) and value is not True:
        raise ConfigError("config.deepspeed", "expected DeepSpeed's configuration as a mapping, or null")
    return {} if value is True else dict(value)
