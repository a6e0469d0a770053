"""Objectives by name or import path."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rllib_lmgame.imports import find_plugin
from rllib_lmgame.learners.advantages import AdvantageInputs, monte_carlo_returns
from rllib_lmgame.learners.objectives.base import ModuleUpdate, Objective
from rllib_lmgame.learners.objectives.ppo import PPOObjective
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.signatures import check_methods, made

KEY = "token_ppo.objective"

OBJECTIVES: dict[str, Callable[[], Objective]] = {"ppo": PPOObjective}
"""Objectives by name, as classes without arguments; any other is an import path ``package.module:Class``."""


def resolve_objective(name: str) -> Objective:
    """A new object of the class registered under ``name``, or of that at ``package.module:Class``.

    Raises:
        ConfigError: No such objective (the message names the nearest one), or one that lacks something, or whose
            methods take something else.
    """
    objective: Objective = made(find_plugin(name, OBJECTIVES, KEY, "objective"), name, KEY)
    check_methods(objective, Objective, name, KEY, "derive from PPOObjective (rllib_lmgame.learners.objectives.ppo)")
    return objective


def needs_critic(objective: Objective, settings: LearnerSettings) -> bool:
    """Whether an update with this objective asks a value function; one that does not say is taken to."""
    asks = getattr(objective, "needs_critic", None)
    return True if asks is None else bool(asks(settings))


def has_gradient(objective: Objective, update: ModuleUpdate) -> bool:
    """Whether the update has one at all, behind ``prepare``; an objective that does not say is taken to. The same on
    all learners, which all must ask.
    """
    asks = getattr(objective, "has_gradient", None)
    return True if asks is None else bool(asks(update))


def critic_targets(objective: Objective, update: ModuleUpdate, inputs: AdvantageInputs) -> np.ndarray:
    """What a critic's warm-up fits, float32 ``[A]``: what the objective says, or Monte-Carlo returns discounted per
    token. All learners take part.
    """
    asks = getattr(objective, "critic_targets", None)
    targets: np.ndarray = monte_carlo_returns(inputs) if asks is None else asks(update)
    return targets
