"""Advantage estimators by name or import path."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.imports import find_plugin
from rllib_lmgame.learners.advantages.gae import token_gae
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.learners.advantages.role_baseline import RoleBaseline
from rllib_lmgame.signatures import check_call, made

KEY = "token_ppo.advantage_estimator"


class AdvantageEstimator(Protocol):
    """A function, an object, or a class without arguments, of which every policy gets an object of its own.

    It may have two attributes, both false where they are missing: ``needs_groups`` (it compares the trajectories of a
    group, which then stay together on their way through learners and minibatches) and ``needs_reference``
    (``ref_logprobs`` is filled also without a KL penalty).

    One that remembers something from update to update has ``get_state()``, which gives what JSON can hold, and
    ``set_state(state)``: both are part of the checkpoint. That of the first learner counts, so what is remembered must
    be the same on all of them; it is where it comes from sums over all learners (``inputs.all_reduce``).
    """

    def __call__(self, inputs: AdvantageInputs, /) -> np.ndarray:
        """Advantages, float32 ``[A]``."""


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator | type[AdvantageEstimator]] = {
    "gae": token_gae,
    "role_baseline": RoleBaseline,
}
"""Estimators by name; any other is an import path ``package.module:name``."""

_TAKES = (
    "an estimator takes one argument, an AdvantageInputs (rllib_lmgame.learners.advantages.inputs): write "
    "`def estimator(inputs)` and read `inputs.rewards`, `inputs.values`, `inputs.bootstrap`, `inputs.offsets`, "
    "`inputs.gamma`, `inputs.lam` where these were six arguments before"
)


def resolve_estimator(name: str) -> AdvantageEstimator:
    """The estimator registered under ``name``, or the one at ``package.module:name``.

    Raises:
        ConfigError: No such estimator (the message names the nearest one), or one that does
            not take :class:`AdvantageInputs`.
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


def estimator_state(name: str, estimator: AdvantageEstimator) -> dict[str, Any] | None:
    """What the estimator of this name remembers, or ``None`` if it does not say.

    Raises:
        ConfigError: It is nothing that JSON can hold.
    """
    if not hasattr(estimator, "get_state"):
        return None
    try:
        state: dict[str, Any] = json.loads(json.dumps(estimator.get_state()))
    except (TypeError, ValueError) as error:
        raise ConfigError(KEY, f"what `{name}`.get_state() gives cannot be saved as JSON: {error}") from error
    return state


def restore_estimator(estimator: AdvantageEstimator, state: Mapping[str, Any]) -> None:
    """Give an estimator back what it remembered, if it remembers anything."""
    if hasattr(estimator, "set_state"):
        estimator.set_state(state)
