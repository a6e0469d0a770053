"""Advantage estimators by name or import path."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import numpy as np

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.imports import find_plugin
from rllib_lmgame.learners.advantages.gae import token_gae
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs

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


def resolve_estimator(name: str) -> AdvantageEstimator:
    """The estimator registered under ``name``, or the one at ``package.module:name``.

    Raises:
        ConfigError: No such estimator (the message names the nearest one), or one that does not take
            :class:`AdvantageInputs`.
    """
    found = find_plugin(name, ADVANTAGE_ESTIMATORS, KEY, "advantage estimator")
    estimator: AdvantageEstimator = _instance(name, found) if inspect.isclass(found) else found
    _check_signature(name, estimator)
    return estimator


def needs_groups(estimator: AdvantageEstimator) -> bool:
    """Whether it compares the trajectories of a group."""
    return bool(getattr(estimator, "needs_groups", False))


def needs_reference(estimator: AdvantageEstimator) -> bool:
    """Whether it needs the reference model's log-probabilities."""
    return bool(getattr(estimator, "needs_reference", False))


def _instance(name: str, cls: type) -> Any:
    try:
        return cls()
    except TypeError as error:
        raise ConfigError(KEY, f"`{name}` cannot be made without arguments: {error}") from error


def _check_signature(name: str, estimator: Any) -> None:
    """Refuse what cannot be called with one argument; estimators took six arrays once."""
    if not callable(estimator):
        raise ConfigError(KEY, f"`{name}` is a {type(estimator).__name__}, not a function")
    try:
        signature = inspect.signature(estimator)
    except ValueError:  # Some built-in functions have none to look at.
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigError(
            KEY,
            f"`{name}` takes {signature}; an estimator takes one argument, an AdvantageInputs "
            "(rllib_lmgame.learners.advantages.inputs): write `def estimator(inputs)` and read `inputs.rewards`, "
            "`inputs.values`, `inputs.bootstrap`, `inputs.offsets`, `inputs.gamma`, `inputs.lam` where these were "
            "six arguments before",
        ) from None
