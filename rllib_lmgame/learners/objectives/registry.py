"""Objectives by name or import path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.imports import find_plugin
from rllib_lmgame.learners.objectives.base import Objective
from rllib_lmgame.learners.objectives.ppo import PPOObjective

KEY = "token_ppo.objective"

OBJECTIVES: dict[str, Callable[[], Objective]] = {"ppo": PPOObjective}
"""Objectives by name, as classes without arguments; any other is an import path ``package.module:Class``."""

_NEEDED = tuple(name for name in vars(Objective) if not name.startswith("_"))


def resolve_objective(name: str) -> Objective:
    """A new object of the class registered under ``name``, or of that at ``package.module:Class``.

    Raises:
        ConfigError: No such objective (the message names the nearest one), or one that lacks something.
    """
    make: Any = find_plugin(name, OBJECTIVES, KEY, "objective")
    if not callable(make):
        raise ConfigError(KEY, f"`{name}` is a {type(make).__name__}, not a class")
    try:
        objective: Objective = make()
    except TypeError as error:
        raise ConfigError(KEY, f"`{name}` cannot be made without arguments: {error}") from error
    missing = [attribute for attribute in _NEEDED if not hasattr(objective, attribute)]
    if missing:
        raise ConfigError(
            KEY,
            f"`{name}` lacks {', '.join(missing)} of Objective (rllib_lmgame.learners.objectives.base); derive from "
            "PPOObjective (rllib_lmgame.learners.objectives.ppo)",
        )
    return objective
