"""Which of a policy's weights are sent to engines or written to files, and what is said of weights of another kind."""

from __future__ import annotations

from enum import Enum


class WeightUse(Enum):
    TRAINING = "training"
    """Playing the episodes that are trained on."""
    EVALUATION = "evaluation"
    """Playing the episodes of an evaluation."""
    EXPORT = "export"
    """The Hugging Face directory of a checkpoint."""


def takes_average(use: WeightUse, averaging: bool) -> bool:
    """Whether ``use`` takes the running average, where there is one, in place of the trained weights."""
    return averaging and use is not WeightUse.TRAINING


STATE_FILE = "learner.json"
"""In a checkpoint's files of the learners: which policies there are, and which of them have a value function."""


def critic_difference(origin: str, policy: str, *, there: bool) -> str:
    """What to say of weights of a policy with a value function (``there``) where the run has none, or without one."""
    kinds = {True: "a value function", False: "no value function"}
    return (
        f"{origin}: {policy} has {kinds[there]} there and {kinds[not there]} here, as "
        "token_ppo.advantage_estimator asks for it (supervised learning has none); go on with an estimator of the same "
        "kind, or begin with the checkpoint's hf/ as language_model.model"
    )
