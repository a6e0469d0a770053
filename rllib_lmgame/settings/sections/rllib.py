"""RLlib's own configuration keys: which exist, and what types and ranges they have."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.settings.schedules import check_points
from rllib_lmgame.settings.schema import check_value, limits

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

NUMBER, WHOLE, TRUTH = float, int, bool
_TYPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "lr": (float | list, {"above": 0}),
    "gamma": (NUMBER, {"low": 0, "high": 1}),
    "lambda": (NUMBER, {"low": 0, "high": 1}),
    "lambda_": (NUMBER, {"low": 0, "high": 1}),
    "grad_clip": (float | None, {"above": 0}),
    "kl_coeff": (NUMBER, {"low": 0}),
    "kl_target": (NUMBER, {"above": 0}),
    "use_kl_loss": (TRUTH, {}),
    "vf_loss_coeff": (NUMBER, {"low": 0}),
    "entropy_coeff": (float | list, {"low": 0}),
    "num_epochs": (WHOLE, {"low": 1, "high": 10_000}),
    "num_env_runners": (WHOLE, {"low": 0, "high": 10_000}),
    "num_envs_per_env_runner": (WHOLE, {"low": 1, "high": 100_000}),
    "num_cpus_per_env_runner": (NUMBER, {"low": 0}),
    "num_learners": (WHOLE, {"low": 0, "high": 10_000}),
    "num_gpus_per_learner": (NUMBER, {"low": 0}),
    "num_cpus_for_main_process": (NUMBER, {"low": 0}),
    "seed": (int | None, {"low": 0}),
    "evaluation_interval": (int | None, {"low": 0}),
    "evaluation_duration": (WHOLE, {"low": 1, "high": 1_000_000}),
    "evaluation_num_env_runners": (WHOLE, {"low": 0, "high": 10_000}),
    "env_config": (dict[str, Any], {}),
    "restart_failed_env_runners": (TRUTH, {}),
    "sample_timeout_s": (float | None, {"above": 0}),
}

SCHEDULED_KEYS = ("lr", "gamma", "lambda", "vf_loss_coeff", "entropy_coeff", "kl_coeff", "num_epochs")
"""Those that ``schedules`` may change during a run."""

FLAT_KEYS = (
    *_TYPES,
    "env",
    "callbacks",
    "evaluation_config",
    "grad_clip_by",
    "num_cpus_per_learner",
    "num_gpus_per_env_runner",
)
"""RLlib's keys that a user is likely to mean; :func:`rllib_keys` knows them all, but imports RLlib."""

OTHER_SECTIONS = ("deepspeed", "policies", "policy_mapping_fn", "games", "schedules")
"""Keys of the configuration that are neither option groups nor RLlib's."""

WITHOUT_EFFECT = {
    "clip_param": "set token_ppo.clip_low and token_ppo.clip_high",
    "vf_clip_param": "set token_ppo.value_clip",
    "use_gae": "set token_ppo.advantage_estimator",
    "use_critic": "set token_ppo.advantage_estimator",
    "train_batch_size": "a batch is made of whole episodes; set text_rollouts.episodes_per_iteration",
    "train_batch_size_per_learner": "a batch is made of whole episodes; set text_rollouts.episodes_per_iteration",
    "minibatch_size": "set token_ppo.num_minibatches",
    "shuffle_batch_per_epoch": "rows are shuffled in every epoch",
    "rollout_fragment_length": "episodes are played to their end; set text_rollouts.episodes_per_iteration",
    "model": "set language_model",
    "num_gpus": "set num_gpus_per_learner, and inference.num_gpus_per_engine for the engines",
    "exploration_config": "replies are sampled; set inference.temperature",
    "observation_filter": "observations are text",
    "clip_rewards": "set text_rollouts.reward_scale",
    "clip_actions": "actions are text",
    "normalize_actions": "actions are text",
    "compress_observations": "nothing of an episode is sent but its texts and token ids",
}
"""Keys of RLlib's PPO that nothing here reads, with what does it instead."""

OTHER_NAMES = {
    "learning_rate": "lr",
    "max_grad_norm": "grad_clip",
    "max_norm": "grad_clip",
    "gae_lambda": "lambda",
    "ent_coef": "entropy_coeff",
    "vf_coef": "vf_loss_coeff",
    "kl_coef": "kl_coeff",
    "beta": "kl_coeff",
    "ppo_epochs": "num_epochs",
    "num_ppo_epochs": "num_epochs",
    "num_train_epochs": "num_epochs",
    "clip_range": "token_ppo.clip_high",
    "cliprange": "token_ppo.clip_high",
    "epsilon": "token_ppo.clip_high",
    "num_generations": "text_rollouts.group_size",
}
"""What other trainers (Transformers, TRL, Stable-Baselines3) call the same thing."""


@cache
def rllib_keys() -> frozenset[str]:
    """Every key RLlib's ``PPOConfig`` knows."""
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig()
    return frozenset({*vars(config), *config.to_dict(), *_EXTRA_KEYS})


@cache
def rllib_words() -> frozenset[str]:
    """Every word of the source of RLlib's ``PPOConfig``, without importing it: all of :func:`rllib_keys` are among
    them, and few misspelt ones.
    """
    ray = importlib.util.find_spec("ray")
    root = Path(next(iter((ray and ray.submodule_search_locations) or ()), ""))
    files = [root / "rllib" / "algorithms" / name for name in ("algorithm_config.py", "ppo/ppo.py")]
    return frozenset(
        re.findall(r"\w+", " ".join(file.read_text(encoding="utf-8") for file in files if file.is_file()))
    ).union(_EXTRA_KEYS)


def key_rule(key: str) -> tuple[Any, dict[str, Any]]:
    """Type of a number among RLlib's keys, and its limits in a schedule; a learning rate may fall to 0 there."""
    hint, bounds = _TYPES[key]
    return (NUMBER, {"low": 0}) if hint == (float | list) else (hint, bounds)


def check_rllib_key(key: str, value: Any, config: Any) -> Any:
    """Check the type and range of one of RLlib's keys; keys without a rule are compared with the type of their default.

    Raises:
        ConfigError: naming what is wrong.
    """
    path = f"config.{key}"
    if key in WITHOUT_EFFECT and _changes(value, getattr(config, key, None)):
        raise without_effect(key)
    if key in _TYPES:
        hint, bounds = _TYPES[key]
        if isinstance(value, list | tuple) and hint == (float | list):
            return _check_schedule(value, path)
        return check_value(value, hint, bounds, path)
    default = getattr(config, key, None)
    if isinstance(default, bool) and not isinstance(value, bool):
        return check_value(value, bool, {}, path)
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    if is_number and isinstance(value, str) and value != "auto":
        return check_value(value, float, {}, path)
    return value if value == default else check_value(value, Any, {}, path)


def without_effect(key: str) -> ConfigError:
    """The error for a key of RLlib's that nothing here reads."""
    return ConfigError(f"config.{key}", f"has no effect with this algorithm: {WITHOUT_EFFECT[key]}")


def check_without_effect(config: Any, defaults: Any) -> None:
    """Raise if a method of RLlib's (``training(train_batch_size=...)``) set what nothing here reads.

    Raises:
        ConfigError: naming the key and what does it instead.
    """
    for key in WITHOUT_EFFECT:
        # RLlib works this one out where it is not set.
        attribute = "_train_batch_size_per_learner" if key == "train_batch_size_per_learner" else key
        if _changes(getattr(config, attribute, None), getattr(defaults, attribute, None)):
            raise without_effect(key)


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
        check_value(at_step, float, limits(low=0), f"{path}[{position}]")
    if len(value) < 2:
        raise ConfigError(path, f"a schedule has two points or more; for a constant write {value[0][1]:g}")
    return value
