"""Advantage estimators by name or import path."""

from __future__ import annotations

import inspect
from typing import Protocol

import numpy as np

from rllib_lmgame.imports import find_plugin
from rllib_lmgame.learners.advantages.gae import token_gae
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.signatures import check_call, made

KEY = "token_ppo.advantage_estimator"


class AdvantageEstimator(Protocol):
    """A function, an object, or a class without arguments, of which every policy gets an object of its own.

    It may have two attributes, both false where they are missing: ``needs_groups`` (it compares the trajectories of a
    group, which then stay together on their way through learners and minibatches) and ``needs_reference``
    (``ref_logprobs`` is filled also without a KL penalty).
    """

    def __call__(self, inputs: AdvantageInputs, /) -> np.ndarray:
        """Advantages, float32 ``[A]``."""


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator | type[AdvantageEstimator]] = {"gae": token_gae}
"""Estimators by name; any other is an import path ``package.module:name``."""

_TAKES = (
    "an estimator takes one argument, an AdvantageInputs (rllib_lmgame.learners.advantages.inputs): write "
    "`def estimator(inputs)` and read `inputs.rewards`, `inputs.values`, `inputs.bootstrap`, `inputs.offsets`, "
    "`inputs.gamma`, `inputs.lam` where these were six arguments before"
)


def resolve_estimator(name: str) -> AdvantageEstimator:
    """The estimator registered under ``name``, or the one at ``package.module:name``.

    Raises:
        ConfigError: No such estimator (the message names the nearest one), or one that does not take
            :class:`AdvantageInputs`.
    """
    found = find_plugin(name, ADVANTAGE_ESTIMATORS, KEY, "advantage estimator")
    estimator: AdvantageEstimator = made(found, name, KEY) if inspect.isclass(found) else found
    check_call(estimator, name, KEY, _TAKES, None)
    return estimator


def needs_groups(estimator: AdvantageEstimator) -> bool:
    """Whether it compares the trajectories of a group."""
    return bool(getattr(estimator, "needs_groups", False))


def needs_reference(estimator: AdvantageEstimator) -> bool:
    """Whether it needs the reference model's log-probabilities."""
    return bool(getattr(estimator, "needs_reference", False))
