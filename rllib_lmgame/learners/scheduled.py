"""Options of an update that follow a schedule: whose they are, and their present values in the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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

_SECTIONS = {
    "token_ppo": "token_ppo_options",
    "text_rollouts": "text_rollout_options",
    "inference": "inference_options",
}
"""Sections that an update reads -> attributes of a configuration."""


def own_keys(config: Any, module_id: str) -> frozenset[str]:
    """Keys of options that a module has of its own, by RLlib's overrides per module: no schedule changes them.

    Args:
        config: The algorithm's configuration.
        module_id: The module. Of a section that it has as a whole, its own options are those that differ from
            everybody's.
    """
    overrides: Mapping[str, Any] = config.algorithm_config_overrides_per_module.get(module_id) or {}
    keys = {"lambda" if key == "lambda_" else key for key in overrides}
    for section, attribute in _SECTIONS.items():
        keys |= {f"{section}.{name}" for name in overrides.get(section) or ()}
        own, everybodys = overrides.get(attribute), getattr(config, attribute)
        for name in (field.name for field in dataclasses.fields(everybodys) if own is not None):
            if getattr(own, name) != getattr(everybodys, name):
                keys.add(f"{section}.{name}")
    return frozenset(keys)


def with_values(settings: LearnerSettings, values: Mapping[str, float]) -> LearnerSettings:
    """The settings with the values of a schedule's keys, which are in range; keys that are not the learner's business
    are passed over.
    """
    changes: dict[str, Any] = {field: values[key] for key, field in _FIELDS.items() if key in values}
    ppo = {key.removeprefix(_TOKEN_PPO): value for key, value in values.items() if key.startswith(_TOKEN_PPO)}
    if ppo:
        changes["ppo"] = dataclasses.replace(settings.ppo, **ppo)  # type: ignore[arg-type]
    if "inference.temperature" in values:
        from rllib_lmgame.learners.settings import (
            learning_temperature,  # Loads torch, which the driver's checks do not.
        )

        changes["temperature"] = learning_temperature(values["inference.temperature"])
    return dataclasses.replace(settings, **changes)
