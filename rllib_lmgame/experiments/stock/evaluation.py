"""Evaluation of checkpoints of stock RLlib algorithms (new API stack)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.experiments.stock.keys import check_environment


def evaluate_stock_checkpoint(
    path: str,
    *,
    env: str | None = None,
    env_config: Mapping[str, Any] | None = None,
    num_episodes: int = 10,
    explore: bool = False,
    overrides: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> dict[str, float]:
    """Play episodes with a checkpoint's policy; returns RLlib's numbers below ``evaluation/env_runners``.

    Loading a stock checkpoint runs code that is pickled in it: only load what you trust. ``env`` replaces the
    environment trained on, ``explore`` samples actions, ``overrides`` are further settings of the configuration.

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
        evaluation_config={"explore": explore, **({} if seed is None else {"seed": seed})},
    )
    try:
        algorithm = config.build_algo()
    except ValueError as error:
        raise ConfigError("", first_line(error)) from error
    algorithm.restore_from_path(str(Path(path).absolute()))
    try:
        return _numbers(algorithm.evaluate().get("env_runners", {}))
    finally:
        algorithm.stop()


def _numbers(results: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in results.items():
        if isinstance(value, Mapping):
            flat.update(_numbers(value, f"{prefix}{key}/"))
        elif isinstance(value, int | float) or hasattr(value, "item"):
            flat[f"{prefix}{key}"] = float(value)
    return flat
