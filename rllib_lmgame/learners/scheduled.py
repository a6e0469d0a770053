"""Options of an update that follow a schedule: whose they are, and their present values in the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rllib_lmgame.settings.schema import with_changes

if TYPE_CHECKING:
    from rllib_lmgame.learners.settings import LearnerSettings

_FIELDS = {
    "gamma": "gamma",
    "lambda": "lam",
    "vf_loss_coeff": "vf_loss_coeff",
    "num_epochs": "num_epochs",
    "text_rollouts.reward_scale": "reward_scale",
}
"""Keys whose value a setting of the learner's own holds."""

_TOKEN_PPO = "token_ppo."


def own_keys(config: Any, module_id: str) -> frozenset[str]:
    """See :meth:`~rllib_lmgame.settings.tree.Settings.own_keys`."""
    keys: frozenset[str] = config.settings.own_keys(module_id)
    return keys


def with_values(settings: LearnerSettings, values: Mapping[str, float]) -> LearnerSettings:
    """The settings with the values of a schedule's keys, which are in range; keys that are not the learner's business
    are passed over.
    """
    changes: dict[str, Any] = {field: values[key] for key, field in _FIELDS.items() if key in values}
    ppo = {key.removeprefix(_TOKEN_PPO): value for key, value in values.items() if key.startswith(_TOKEN_PPO)}
    if ppo:
        changes["ppo"] = with_changes(settings.ppo, ppo)
    if "inference.temperature" in values:
        from rllib_lmgame.learners.settings import (
            learning_temperature,  # Loads torch, which the driver's checks do not.
        )

        changes["temperature"] = learning_temperature(values["inference.temperature"])
    return dataclasses.replace(settings, **changes)
