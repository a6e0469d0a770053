"""What an update minimises."""

from rllib_lmgame.learners.objectives.base import Loss, ModuleUpdate, Objective
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
]
