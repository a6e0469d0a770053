"""Advantage estimators by name or import path."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np

from rllib_lmgame.errors import CheckpointError, ConfigError
from rllib_lmgame.imports import find_plugin
from rllib_lmgame.learners.advantages.bilevel_gae import BilevelGAE
from rllib_lmgame.learners.advantages.gae import GAE, monte_carlo_returns, token_gae
from rllib_lmgame.learners.advantages.gigpo import GiGPO
from rllib_lmgame.learners.advantages.group_relative import GRPO, RLOO, DrGRPO, MaxRL
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.learners.advantages.reinforce import Reinforce, ReinforcePP
from rllib_lmgame.learners.advantages.role_baseline import RoleBaseline
from rllib_lmgame.learners.advantages.turn_gae import TurnGAE
from rllib_lmgame.learners.advantages.vine import Vine
from rllib_lmgame.settings.schema import describe, unknown_key
from rllib_lmgame.signatures import check_arguments, check_call, made

KEY = "token_ppo.advantage_estimator"


class AdvantageEstimator(Protocol):
    """A function, an object, or a class, of which every policy gets an object of its own. The class's arguments have
    defaults and are its options; they are checked by their annotations (:mod:`rllib_lmgame.signatures`).

    It may have attributes, all false where they are missing but ``needs_critic``: ``needs_groups`` (it compares the
    trajectories of a group, which then stay together on their way through learners and minibatches),
    ``needs_reference`` (``ref_logprobs`` is filled also without a KL penalty), ``needs_critic`` (it reads ``values`` or
    ``bootstrap``) and ``own_scale`` (its advantages are used as they are unless ``normalize_advantages`` is set).
    ``reads`` names those of ``gamma``, ``lam`` and ``baseline_decay`` that it reads, all where it is missing: who sets
    another is told that it has no effect. ``state_rollouts``, 0 where it is missing, is how many rollouts it wants from
    every state in which a trained player acted; their mean return is in ``turn_values``.

    The target of the value function is a return discounted per token (``critic_target``) unless the estimator has a
    method ``value_targets(inputs, *, monte_carlo)`` that gives another, float32 ``[A]``.

    One that remembers something from update to update has ``get_state()``, which gives what JSON can hold, and
    ``set_state(state)``: both are part of the checkpoint. That of the first learner counts, so what is remembered must
    be the same on all of them; it is where it comes from sums over all learners (``inputs.all_reduce``).
    """

    def __call__(self, inputs: AdvantageInputs, /) -> np.ndarray:
        """Advantages, float32 ``[A]``."""


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator | type[AdvantageEstimator]] = {
    "gae": GAE,
    "turn_gae": TurnGAE,
    "bilevel_gae": BilevelGAE,
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "rloo": RLOO,
    "max_rl": MaxRL,
    "gigpo": GiGPO,
    "reinforce": Reinforce,
    "reinforce_pp": ReinforcePP,
    "vine": Vine,
    "rae": RoleBaseline,
    "role_baseline": RoleBaseline,
}
"""Estimators by name, of which ``rae`` and ``role_baseline`` are one; any other is an import path
``package.module:name``."""

_TAKES = (
    "an estimator takes one argument, an AdvantageInputs (rllib_lmgame.learners.advantages.inputs): write "
    "`def estimator(inputs)` and read `inputs.rewards`, `inputs.values`, `inputs.bootstrap`, `inputs.offsets`, "
    "`inputs.gamma`, `inputs.lam` where these were six arguments before"
)


def estimator_name(choice: str | Mapping[str, Any]) -> str:
    """The name in ``token_ppo.advantage_estimator``, which is a name or a mapping with one as ``type``.

    Raises:
        ConfigError: A mapping without one.
    """
    name = choice.get("type") if isinstance(choice, Mapping) else choice
    if not isinstance(name, str):
        raise ConfigError(f"{KEY}.type", "is missing: write {type: NAME, OPTION: VALUE}")
    return name


def estimator_label(choice: str | Mapping[str, Any]) -> str:
    """The same for all spellings of an estimator and its options: its first name, with options as JSON."""
    name = estimator_name(choice)
    found = ADVANTAGE_ESTIMATORS.get(name)
    first = next((other for other, each in ADVANTAGE_ESTIMATORS.items() if each is found), name)
    options = {key: value for key, value in choice.items() if key != "type"} if isinstance(choice, Mapping) else {}
    return json.dumps({"type": first, **options}, sort_keys=True) if options else first


def resolve_estimator(choice: str | Mapping[str, Any]) -> AdvantageEstimator:
    """The estimator registered under a name, or the one at ``package.module:name``.

    Args:
        choice: The name, or a mapping with it as ``type`` and options of the estimator beside it.

    Raises:
        ConfigError: No such estimator (the message names the nearest one), options that it does not take, or one that
            does not take :class:`AdvantageInputs`.
    """
    name = estimator_name(choice)
    found = find_plugin(name, ADVANTAGE_ESTIMATORS, KEY, "advantage estimator")
    options = {key: value for key, value in choice.items() if key != "type"} if isinstance(choice, Mapping) else {}
    if inspect.isclass(found):
        found = made(partial(found, **_checked(found, name, options)) if options else found, name, KEY)
    elif options:
        raise ConfigError(f"{KEY}.{next(iter(options))}", f"`{name}` takes no options")
    estimator: AdvantageEstimator = found
    check_call(estimator, name, KEY, _TAKES, None)
    return estimator


def _checked(cls: Any, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a class, checked by its signature."""
    known = inspect.signature(cls).parameters
    for key in options:
        if not known:
            raise ConfigError(f"{KEY}.{key}", f"`{name}` takes no options")
        if key not in known:
            raise unknown_key(key, known, KEY)
    return check_arguments(cls, options, KEY)


def needs_groups(estimator: AdvantageEstimator) -> bool:
    """Whether it compares the trajectories of a group."""
    return bool(getattr(estimator, "needs_groups", False))


def needs_reference(estimator: AdvantageEstimator) -> bool:
    """Whether it needs the reference model's log-probabilities."""
    return bool(getattr(estimator, "needs_reference", False))


def needs_critic(estimator: AdvantageEstimator | type[AdvantageEstimator]) -> bool:
    """Whether it reads what a value function says; without a word of its own it is taken to."""
    return bool(getattr(estimator, "needs_critic", True))


def state_rollouts(estimator: AdvantageEstimator) -> int:
    """How many rollouts it wants from every state.

    Raises:
        ConfigError: if that is no number of them.
    """
    wanted: Any = getattr(estimator, "state_rollouts", 0)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise ConfigError(KEY, f"its state_rollouts must be a whole number of at least 0, got {describe(wanted)}")
    return wanted


def reads(estimator: AdvantageEstimator, setting: str) -> bool:
    """Whether it reads ``gamma``, ``lam`` or ``baseline_decay`` of its inputs; without a word of its own it is taken
    to.
    """
    return setting in getattr(estimator, "reads", (setting,))


def keeps_baseline(estimator: AdvantageEstimator) -> bool:
    """Whether it says of itself that it reads ``baseline_decay``: it keeps a running mean of scaled rewards."""
    return "baseline_decay" in getattr(estimator, "reads", ())


def own_scale(estimator: AdvantageEstimator) -> bool:
    """Whether its advantages are meant as they are: neither centred nor scaled unless somebody asks for it."""
    return bool(getattr(estimator, "own_scale", False))


def normalize_mode(chosen: str | None, estimator: AdvantageEstimator) -> str:
    """How its advantages are normalised: as ``normalize_advantages`` says, or as suits them."""
    return chosen or ("none" if own_scale(estimator) else "batch")


def value_targets(estimator: AdvantageEstimator, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
    """Target of the value function, float32 ``[A]``: discounted as the estimator discounts, per token if it does not
    say.

    Args:
        estimator: The policy's.
        inputs: Of the update.
        monte_carlo: Discounted rewards; else a lambda return.
    """
    if monte_carlo:
        return monte_carlo_targets(estimator, inputs)
    own = getattr(estimator, "value_targets", None)
    if own is not None:
        targets: np.ndarray = own(inputs, monte_carlo=False)
        return targets
    return token_gae(inputs) + inputs.values


def monte_carlo_targets(estimator: AdvantageEstimator, inputs: AdvantageInputs) -> np.ndarray:
    """What the value function is to predict, as far as rewards alone tell (and ``bootstrap`` after a cut): discounted
    as the estimator discounts, per token if it does not say; float32 ``[A]``.
    """
    own = getattr(estimator, "value_targets", None)
    targets: np.ndarray = monte_carlo_returns(inputs) if own is None else own(inputs, monte_carlo=True)
    return targets


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
    """Give an estimator back what it remembered, if it remembers anything.

    Raises:
        CheckpointError: It can make nothing of it.
    """
    if hasattr(estimator, "set_state"):
        try:
            estimator.set_state(state)
        except Exception as error:
            raise CheckpointError(
                f"what {KEY} remembers cannot be restored, the checkpoint is damaged: {type(error).__name__}: {error}"
            ) from error
