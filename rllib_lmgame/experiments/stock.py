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
_TRUTH_WORDS = {"yes", "no", "on", "off", "y", "n", "true", "false"}


def check_stock_config(defaults: Any, values: Mapping[str, Any]) -> None:
    """Check keys (RLlib's flat ones) of a stock algorithm's configuration, and types where possible.

    Raises: ConfigError: keys relative to the configuration.
    """
    known = defaults.to_dict()
    named = {name: getattr(type(defaults), name, None) for name in dir(type(defaults))}
    settable = {name for name, found in named.items() if isinstance(found, property) and found.fset}
    valid = {*known, *settable, *_EXTRA_KEYS}
    for key, value in values.items():
        if key not in valid:
            hint = did_you_mean(key, valid, f"{type(defaults).__name__} has no such setting")
            raise ConfigError(key, f"unknown key; {hint}")
        _check_type(key, value, known.get(key))
    if values.get("framework", "torch") != "torch":
        raise ConfigError("framework", f"RLlib's new API stack runs on torch only, got {values['framework']!r}")
    check_environment(values.get("env"), values.get("env_config"))


def _check_type(key: str, value: Any, default: Any) -> None:
    if isinstance(value, Mapping) and isinstance(default, int | float):
        kind = "truth value" if isinstance(default, bool) else "number"
        raise ConfigError(key, f"expected a {kind}, got {describe(value)}")
    if not isinstance(value, str):
        return
    if isinstance(default, bool) and value.lower() in _TRUTH_WORDS:
        raise ConfigError(key, f"expected true or false, got {describe(value)} (write true or false, without quotes)")
    if isinstance(default, int | float) and not isinstance(default, bool) and _is_number(value):
        raise ConfigError(key, f"expected a number, got {describe(value)} (write the number without quotes)")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_environment(env: Any, env_config: Any = None) -> None:
    """Raise :class:`ConfigError` if a stock algorithm's environment is registered nowhere, or not with such options."""
    if env is None:
        raise ConfigError("env", "missing; name the environment, e.g. `env: CartPole-v1`")
    if not isinstance(env, str):
        return
    import gymnasium
    from ray.tune.registry import ENV_CREATOR, _global_registry

    from rllib_lmgame.envs.registry import check_gymnasium_arguments

    if _global_registry.contains(ENV_CREATOR, env) or env.startswith(("ale_py:", "external")):
        return
    if ":" in env or ("." in env and "/" not in env and env.rpartition(".")[2].isidentifier()):
        return
    try:
        gymnasium.spec(env)
    except gymnasium.error.Error as error:
        raise ConfigError("env", first_line(error)) from None
    if isinstance(env_config, Mapping):
        check_gymnasium_arguments(env, env_config)


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
    if env is not None:
        check_environment(env)
    from ray.rllib.algorithms.algorithm import Algorithm

    try:
        loaded = Algorithm.from_checkpoint(path)
    except (FileNotFoundError, ValueError, EOFError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    config = loaded.config.copy(copy_frozen=False)  # type: ignore[union-attr]
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
