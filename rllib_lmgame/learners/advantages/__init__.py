"""Advantages over action tokens: what an estimator is given, the estimators, and how their results are scaled."""

from rllib_lmgame.learners.advantages.gae import monte_carlo_returns, token_gae
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs, advantage_inputs, normalize, normalize_compared
from rllib_lmgame.learners.advantages.registry import (
    ADVANTAGE_ESTIMATORS,
    AdvantageEstimator,
    estimator_label,
    estimator_name,
    estimator_state,
    keeps_baseline,
    monte_carlo_targets,
    needs_critic,
    needs_groups,
    needs_reference,
    normalize_mode,
    own_scale,
    reads,
    resolve_estimator,
    restore_estimator,
    state_rollouts,
    value_targets,
)

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "AdvantageEstimator",
    "AdvantageInputs",
    "advantage_inputs",
    "estimator_label",
    "estimator_name",
    "estimator_state",
    "keeps_baseline",
    "monte_carlo_returns",
    "monte_carlo_targets",
    "needs_critic",
    "needs_groups",
    "needs_reference",
    "normalize",
    "normalize_compared",
    "normalize_mode",
    "own_scale",
    "reads",
    "resolve_estimator",
    "restore_estimator",
    "state_rollouts",
    "token_gae",
    "value_targets",
]
