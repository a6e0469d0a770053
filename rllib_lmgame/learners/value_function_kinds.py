"""Weights with a value function do not go into a learner without one, nor the other way round: what is said of it."""

from __future__ import annotations

STATE_FILE = "learner.json"
"""In a checkpoint's files of the learners: which policies there are, and which of them have a value function."""


def critic_difference(origin: str, policy: str, *, there: bool) -> str:
    """What to say of weights of a policy with a value function (``there``) where the run has none, or without one."""
    kinds = {True: "a value function", False: "no value function"}
    return (
        f"{origin}: {policy} has {kinds[there]} there and {kinds[not there]} here, as "
        "token_ppo.advantage_estimator asks for it; go on with an estimator of the same kind, or begin "
        "with the checkpoint's hf/ as language_model.model"
    )
