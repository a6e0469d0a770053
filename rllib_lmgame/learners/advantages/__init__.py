"""Advantages over action tokens: what an estimator is given, the estimators, and how their results are scaled."""

from rllib_lmgame.learners.advantages.estimator import (
    Estimator,
    estimator_state,
    resolve_estimator,
    restore_estimator,
)
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs, advantage_inputs, normalize, normalize_compared
from rllib_lmgame.learners.advantages.returns import monte_carlo_returns, token_gae

__all__ = [
    "AdvantageInputs",
    "Estimator",
    "advantage_inputs",
    "estimator_state",
    "monte_carlo_returns",
    "normalize",
    "normalize_compared",
    "resolve_estimator",
    "restore_estimator",
    "token_gae",
]
