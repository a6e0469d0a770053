"""What an advantage estimator is, and how one is made from a setting."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_lmgame.errors import CheckpointError, ConfigError
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.learners.advantages.returns import monte_carlo_returns, token_gae
from rllib_lmgame.settings.plugins import ESTIMATORS, check_call, made
from rllib_lmgame.settings.schema import describe

_TAKES = (
    "an estimator takes one argument, an AdvantageInputs (rllib_lmgame.learners.advantages.inputs): write "
    "`def estimator(inputs)` and read `inputs.rewards`, `inputs.values`, `inputs.bootstrap`, `inputs.offsets`, "
    "`inputs.gamma`, `inputs.lam` where these were six arguments before"
)


class Estimator:
    """From what is known of an update to the advantage of each of its action tokens.

    A user's own may be a function, or an object or class with the attributes below that it needs: :class:`Foreign` has
    the others. Of a class every policy gets an object of its own; the class's arguments, or fields if it is a
    dataclass, are its options, with defaults and checked by their annotations.
    """

    needs_critic: bool = True
    """It reads ``values`` or ``bootstrap``: there is a value function."""

    needs_groups: bool = False
    """It compares the trajectories of a group, which stay together on their way through learners and minibatches."""

    needs_reference: bool = False
    """``ref_logprobs`` is filled also without a KL penalty."""

    own_scale: bool = False
    """Its advantages are used as they are unless ``normalize_advantages`` is set."""

    keeps_baseline: bool = False
    """It remembers a mean of scaled rewards, so that ``reward_scale`` follows no schedule."""

    state_rollouts: int = 0
    """Rollouts from every state in which a trained player acted, whose mean return is in ``turn_values``."""

    reads: tuple[str, ...] = ("gamma", "lam")
    """Those of these two that it reads: who sets the other is told that it has no effect."""

    def __call__(self, inputs: AdvantageInputs, /) -> np.ndarray:
        """Advantages, float32 ``[A]``."""
        raise NotImplementedError

    def value_targets(self, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
        """Target of the value function, float32 ``[A]``: discounted as the advantages are; here per token.

        Args:
            inputs: Of the update.
            monte_carlo: Discounted rewards (and ``bootstrap`` after a cut); else a lambda return.
        """
        return monte_carlo_returns(inputs) if monte_carlo else token_gae(inputs) + inputs.values

    def get_state(self) -> Any:
        """What it remembers from update to update, as JSON can hold it, for the checkpoint; ``None`` for nothing.

        That of the first learner counts: what is remembered must be the same on all of them, as what comes from
        ``inputs.all_reduce`` is.
        """
        return None

    def set_state(self, state: Any) -> None:
        """Undo :meth:`get_state`."""

    def normalize_mode(self, chosen: str | None) -> str:
        """How its advantages are normalised: as ``normalize_advantages`` says, or as suits them."""
        return chosen or ("none" if self.own_scale else "batch")


class Foreign(Estimator):
    """A function or an object that does not derive from :class:`Estimator`: what it does not say is as there."""

    def __init__(self, found: Any) -> None:
        self._found = found
        for name in (*Estimator.__annotations__, "value_targets", "get_state", "set_state"):
            if hasattr(found, name):
                setattr(self, name, getattr(found, name))

    def __call__(self, inputs: AdvantageInputs, /) -> np.ndarray:
        advantages: np.ndarray = self._found(inputs)
        return advantages


def resolve_estimator(choice: str | Mapping[str, Any]) -> Estimator:
    """The estimator registered under a name, or the one at ``package.module:name``.

    Args:
        choice: The name, or a mapping with it as ``type`` and options of the estimator beside it.

    Raises:
        ConfigError: No such estimator (the message names the nearest one), options that it does not take, or one that
            does not take :class:`AdvantageInputs`.
    """
    key = ESTIMATORS.key
    name, options = ESTIMATORS.split(choice)
    found = ESTIMATORS.find(name)
    if inspect.isclass(found):
        found = made(found, name, key, options)
    elif options:
        raise ConfigError(f"{key}.{next(iter(options))}", f"`{name}` takes no options")
    check_call(found, name, key, _TAKES, None)
    estimator = found if isinstance(found, Estimator) else Foreign(found)
    wanted: Any = estimator.state_rollouts
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise ConfigError(key, f"its state_rollouts must be a whole number of at least 0, got {describe(wanted)}")
    return estimator


def estimator_state(name: str, estimator: Estimator) -> Any:
    """What the estimator of this name remembers, or ``None``.

    Raises:
        ConfigError: It is nothing that JSON can hold.
    """
    try:
        return json.loads(json.dumps(estimator.get_state()))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            ESTIMATORS.key, f"what `{name}`.get_state() gives cannot be saved as JSON: {error}"
        ) from error


def restore_estimator(estimator: Estimator, state: Any) -> None:
    """Give an estimator back what it remembered.

    Raises:
        CheckpointError: It can make nothing of it.
    """
    try:
        estimator.set_state(state)
    except Exception as error:
        raise CheckpointError(
            f"what {ESTIMATORS.key} remembers cannot be restored, the checkpoint is damaged: "
            f"{type(error).__name__}: {error}"
        ) from error
