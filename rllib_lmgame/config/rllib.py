"""RLlib's own configuration keys that act here, and those beside the sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import PlainValidator, field_validator

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
from rllib_lmgame.base.registry import MEASURES
from rllib_lmgame.base.schedule import check_points, is_metric
from rllib_lmgame.base.trust import is_name, is_number
from rllib_lmgame.measures.collapse import CollapseOptions
from rllib_lmgame.policies.options import PlayerOptions, read_policies
from rllib_lmgame.rollouts.options import EnvConfig, GameConfig, read_evaluated, read_games


class RLlibOptions(Group):
    """RLlib's own keys that act here, with this package's defaults; what else ``PPOConfig`` knows is taken, too."""

    env: str | None = option(
        None, "Game: an id of `rllib games list`, or `package.module:Class`. `games` takes several.", stranger=False
    )
    env_config: EnvConfig = option({}, "Options of the game; `rllib info GAME` lists them.", stranger=False)
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
        1e-6, "Learning rate, or a schedule `[[environment steps, value], ...]` that begins at step 0.", ge=0
    )
    gamma: Scheduled[float] = option(
        1.0, "Discount, per action token or per turn, as the estimator takes it.", ge=0, le=1
    )
    lambda_: Scheduled[float] = option(0.95, "GAE's lambda, likewise.", ge=0, le=1)
    num_epochs: Scheduled[int] = option(1, "Passes over the episodes of an iteration.", ge=1, le=10_000)
    grad_clip: float | None = option(1.0, "Bound on the global gradient norm; null is off.", gt=0)
    grad_clip_by: str = option("global_norm", "What `grad_clip` bounds.", choices=("global_norm",))
    vf_loss_coeff: Scheduled[float] = option(0.2, "Weight of the value loss.", ge=0)
    entropy_coeff: Scheduled[float | list[list[float]]] = option(
        0.001, "Weight of the entropy bonus, or a schedule.", ge=0
    )
    kl_coeff: float = option(
        0.001, "Initial weight of the penalty `training.kl`; RLlib adapts it to `kl_target`.", ge=0
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
    evaluation_sample_timeout_s: float | None = option(3600.0, "The same of evaluation env runners.", gt=0)
    restart_failed_env_runners: bool = option(True, "Start a lost env runner again.")
    delay_between_env_runner_restarts_s: float = option(1.0, "Pause before that, in seconds.", ge=0)
    algorithm_config_overrides_per_module: dict[str, dict[str, Any]] = option(
        {}, "What policies have of their own: policy -> options of its update.", stranger=False
    )

    @field_validator("lr", "entropy_coeff", mode="after")
    @classmethod
    def _check_points(cls, value: Any) -> Any:
        return _check_points(value) if isinstance(value, list) else value


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

    games: Annotated[list[Any] | None, PlainValidator(read_evaluated)] = option(
        None,
        "Games of the evaluation, as `games`; null: those of the training, on other levels.",
        holds=Holds(GameConfig, LISTED),
    )
    measures: list[Any] | None = option(
        None, f"Measures: {MEASURES.listed()}, or `{{type: against, player: solver}}`.", stranger=False
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


def _policies(value: Any) -> dict[str, PlayerOptions]:
    return read_policies(["player"] if value is None else value)


def _deepspeed(value: Any) -> dict[str, Any] | None:
    if value is None or value is False:
        return None
    if not isinstance(value, Mapping) and value is not True:
        raise ConfigError("", "expected DeepSpeed's configuration as a mapping, or null")
    return {} if value is True else dict(value)


class OtherOptions(Group):
    """Keys of ``config`` that are neither sections nor RLlib's, and ``evaluation_config``."""

    policies: Annotated[list[Any] | dict[str, Any] | None, PlainValidator(_policies)] = option(
        {"player": PlayerOptions()},
        "Who plays: a list of names, or a mapping from names to their options. See `policy_mapping_fn`.",
        holds=Holds(PlayerOptions, NAMED),
    )
    policy_mapping_fn: Annotated[str | dict[str, Any] | None, PlainValidator(lambda value: value)] = option(
        None, _SEATS, stranger=is_seating
    )
    games: Annotated[list[Any], PlainValidator(read_games)] = option(
        (),
        "A list of game names or of mappings with these keys; instead of `env`, to train on several.",
        holds=Holds(GameConfig, LISTED),
    )
    evaluation_config: EvaluationOptions = option(EvaluationOptions(), "What evaluation has of its own.")
    on_collapse: CollapseOptions | None = option(
        None, "What a trial does that has lost what it had learned, or whose loss is no number; null: it goes on."
    )
    deepspeed: Annotated[dict[str, Any] | bool | None, PlainValidator(_deepspeed)] = option(
        None, "DeepSpeed's own configuration.", stranger=False
    )


FIELDS = declared(RLlibOptions)
"""Key -> its declaration."""

SCHEDULED_KEYS = tuple(key for key, each in FIELDS.items() if each.scheduled)
"""Those that may follow a schedule during a run."""

FLAT_KEYS = (*FIELDS, *declared(OtherOptions), "callbacks")
"""Keys beside the sections that a user is likely to mean."""

_TAKEN = """
callbacks callbacks_class multiagent policies_to_train framework count_steps_by
learner_config_dict extra_python_environs_for_driver extra_python_environs_for_worker placement_strategy
local_gpu_idx custom_resources_for_main_process custom_resources_per_env_runner custom_resources_per_learner
env_runner_cls create_local_env_runner validate_env_runners_after_construction use_kl_loss
max_requests_in_flight_per_env_runner max_requests_in_flight_per_learner
enable_rl_module_and_learner enable_env_runner_and_connector_v2 log_level log_sys_usage stats_cls_lookup
min_time_s_per_iteration min_train_timesteps_per_iteration min_sample_timesteps_per_iteration
ignore_env_runner_failures max_num_env_runner_restarts num_consecutive_env_runner_failures_tolerance
env_runner_health_probe_timeout_s env_runner_restore_timeout_s
"""
TAKEN = frozenset(_TAKEN.split())
"""RLlib's other keys that a file may set; its remaining ones do nothing here."""

INSTEAD = {
    "clip_param": "set training.policy_loss.clip_low and training.policy_loss.clip_high",
    "vf_clip_param": "set training.critic.clip",
    **dict.fromkeys(("use_gae", "use_critic"), "set training.advantage_estimator"),
    **dict.fromkeys(("train_batch_size", "train_batch_size_per_learner"), "set text_rollouts.episodes_per_iteration"),
    "rollout_fragment_length": "episodes are played to their end; set text_rollouts.episodes_per_iteration",
    **dict.fromkeys(("minibatch_size", "sgd_minibatch_size"), "set training.num_minibatches"),
    **dict.fromkeys(("num_workers", "num_rollout_workers"), "set num_env_runners"),
    **dict.fromkeys(("model", "model_config", "rl_module_spec"), "set language_model"),
    "num_gpus": "set num_gpus_per_learner, and inference.num_gpus_per_engine for the engines",
    "clip_rewards": "set text_rollouts.reward_scale",
    "optimizer": "set training.optimizer",
    "explore": "set inference.temperature, or evaluation_config.explore",
    "custom_evaluation_function": "set evaluation_config.measures to a measure of your own",
    "input": "files are read by warm_start.data, or by supervised.data of LMGameSFT",
    "output": "episodes are logged by text_rollouts.episode_log",
    "learner_class": "write an algorithm of your own, whose updates have another objective",
    "env_to_module_connector": "set language_model: it writes the prompts",
    "module_to_env_connector": "set language_model.reply_format to one of your own",
    "learner_connector": "set training.advantage_estimator to one of your own",
    "action_mask_key": "set text_rollouts.constrained_decoding",
    "observation_filter": "observations are texts",
    "torch_compile_learner": "set training.torch_compile",
    "episode_lookback_horizon": "set language_model.history",
    **{f"{key}_schedule": f"give {key} a schedule" for key in ("lr", "entropy_coeff")},
    "batch_mode": "episodes are played to their end",
    "evaluation_parallel_to_training": "evaluation uses the engines that training updates",
}
"""RLlib's keys that do nothing here and are often set, with what does it instead."""


def _check_points(value: Sequence[Any]) -> Sequence[Any]:
    """RLlib's schedules: ``[[step, value], ...]``, two points or more, the first at step 0; a value may fall to 0."""
    check_points(value, "")
    if value[0][0] != 0:
        raise ConfigError("", "a schedule must begin at step 0")
    for position, (_, at_step) in enumerate(value):
        check_value(at_step, float, limits(ge=0), f"[{position}]")
    if len(value) < 2:
        raise ConfigError("", f"a schedule has two points or more; for a constant write {value[0][1]:g}")
    return value
