"""What an update minimises, and how an objective is found by name."""

from rllib_lmgame.learners.objectives.base import Loss, ModuleUpdate, Objective
from rllib_lmgame.learners.objectives.policy_losses import (
    POLICY_LOSSES,
    PolicyLoss,
    PolicyTerms,
    resolve_policy_loss,
)
from rllib_lmgame.learners.objectives.ppo import PPOObjective
from rllib_lmgame.learners.objectives.registry import (
    OBJECTIVES,
    critic_targets,
    has_gradient,
    needs_critic,
    resolve_objective,
)
from rllib_lmgame.learners.objectives.supervised import SupervisedObjective

__all__ = [
    "OBJECTIVES",
    "POLICY_LOSSES",
    "Loss",
    "ModuleUpdate",
    "Objective",
    "PPOObjective",
    "PolicyLoss",
    "PolicyTerms",
    "SupervisedObjective",
    "critic_targets",
    "has_gradient",
    "needs_critic",
    "resolve_objective",
    "resolve_policy_loss",
]
