"""Advantages over action tokens: what an estimator is given, the estimators, and how their results are scaled."""

from rllib_lmgame.learners.advantages.base import (
    AdvantageInputs,
    Estimator,
    advantage_inputs,
    monte_carlo_returns,
    normalize,
    token_gae,
)

__all__ = ["AdvantageInputs", "Estimator", "advantage_inputs", "monte_carlo_returns", "normalize", "token_gae"]
