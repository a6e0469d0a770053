"""Stock RLlib algorithms: checks of their configurations, which by themselves take anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.text import first_line

_EXTRA_KEYS = {
    *("multiagent", "train_batch_size_per_learner", "model_config", "rl_module_spec", "learner_class", "callbacks"),
    *("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2", "custom_evaluation_function"),
}


def check_stock_config(defaults: Any, values: Mapping[str, Any]) -> None:
    """Check keys (RLlib's flat ones) of a stock algorithm's configuration, and that its environment exists.

    Raises: ConfigError: keys relative to the configuration.
    """
    import gymnasium
    from ray.tune.registry import ENV_CREATOR, _global_registry

    known, kind = defaults.to_dict(), type(defaults)
    settable = {name for name in dir(kind) if getattr(getattr(kind, name, None), "fset", None)}
    valid = {*known, *settable, *_EXTRA_KEYS}
    for key, value in values.items():
        if key not in valid:
            raise ConfigError(key, f"unknown key; {did_you_mean(key, valid, f'{kind.__name__} has no such setting')}")
        if isinstance(known.get(key), bool) and isinstance(value, str):  # YAML 1.2's `no` is text, which is true.
            raise ConfigError(key, f"expected true or false, got {describe(value)} (write true or false)")
    if (env := values.get("env")) is None:
        raise ConfigError("env", "missing; name the environment, e.g. `env: CartPole-v1`")
    if isinstance(env, str) and re.fullmatch(r"[^:]+-v\d+", env) and not _global_registry.contains(ENV_CREATOR, env):
        try:
            gymnasium.spec(env)
        except gymnasium.error.Error as error:
            raise ConfigError("env", first_line(error)) from None
