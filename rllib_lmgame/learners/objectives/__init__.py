"""What an update minimises, and how an objective is found by name."""

from rllib_lmgame.learners.objectives.base import Loss, ModuleUpdate, Objective, resolve_objective
from rllib_lmgame.learners.objectives.ppo import PPOObjective
from rllib_lmgame.learners.objectives.preferences import PreferenceObjective
from rllib_lmgame.learners.objectives.supervised import ActionValueObjective, SupervisedObjective

__all__ = [
    "ActionValueObjective",
    "Loss",
    "ModuleUpdate",
    "Objective",
    "PPOObjective",
    "PreferenceObjective",
    "SupervisedObjective",
    "resolve_objective",
]
