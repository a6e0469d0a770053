"""Stock RLlib algorithms: checks of their configurations, which by themselves take anything, and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import CheckpointError, ConfigError, did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.text import first_line
from rllib_lmgame.telemetry.metrics import flatten

_EXTRA_KEYS = {
    *("multiagent", "train_batch_size_per_learner", "model_config", "rl_module_spec", "learner_class", "callbacks"),
    *("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2", "custom_evaluation_function"),
}


def check_stock_config(defaults: Any, values: Mapping[str, Any]) -> None:
    """Check keys (RLlib's flat ones) of a stock algorithm's configuration, and that it has an environment.

    Raises: ConfigError: keys relative to the configuration.
    """
    known, kind = defaults.to_dict(), type(defaults)
    settable = {name for name in dir(kind) if getattr(getattr(kind, name, None), "fset", None)}
    valid = {*known, *settable, *_EXTRA_KEYS}
    for key, value in values.items():
        if key not in valid:
            raise ConfigError(key, f"unknown key; {did_you_mean(key, valid, f'{kind.__name__} has no such setting')}")
        if isinstance(known.get(key), bool) and isinstance(value, str):  # YAML 1.2's `no` is text, which is true.
            raise ConfigError(key, f"expected true or false, got {describe(value)} (write true or false)")
    if values.get("env") is None:
        raise ConfigError("env", "missing; name the environment, e.g. `env: CartPole-v1`")


def evaluate_stock_checkpoint(
    path: str,
    *,
    env: str | None = None,
    env_config: Mapping[str, Any] | None = None,
    num_episodes: int = 10,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Play episodes with a checkpoint's policy; returns RLlib's numbers below ``evaluation/env_runners``.

    Loading a stock checkpoint runs code that is pickled in it: only load what you trust. ``env`` replaces the
    environment trained on, ``overrides`` are further settings of the configuration.

    Raises: CheckpointError: if the checkpoint cannot be loaded.
    """
    from ray.rllib.algorithms.algorithm import Algorithm

    try:
        loaded = Algorithm.from_checkpoint(path)
    except (FileNotFoundError, ValueError, EOFError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    config = loaded.config.copy(copy_frozen=False)
    loaded.stop()
    if env is not None or env_config is not None:
        config.environment(env=env or config.env, env_config=dict(env_config or config.env_config))
    config.update_from_dict(dict(overrides or {}))
    config.env_runners(num_env_runners=0).learners(num_learners=0)
    config.evaluation(
        evaluation_interval=1,
        evaluation_num_env_runners=0,
        evaluation_duration=num_episodes,
        evaluation_duration_unit="episodes",
        evaluation_parallel_to_training=False,
        evaluation_config={"explore": False},
    )
    try:
        algorithm = config.build_algo()
    except ValueError as error:
        raise ConfigError("", first_line(error)) from error
    algorithm.restore_from_path(str(Path(path).absolute()))
    try:
        numbers = flatten(algorithm.evaluate().get("env_runners", {}))
        return {"/".join(path): float(value) for path, value in numbers if hasattr(value, "__float__")}
    finally:
        algorithm.stop()
