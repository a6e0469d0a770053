"""Options of an update that follow a schedule: whose they are, and their present values in the settings."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rllib_lmgame.settings.schema import fields_of, group_in, leaves, tag_of, value_at, with_changes

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
        own, everybodys = overrides.get(attribute), getattr(config, attribute)
        keys |= {f"{section}.{name}" for name in _written(type(everybodys), overrides.get(section) or {})}
        for name in leaves(type(everybodys)) if own is not None else ():
            if value_at(own, name) != value_at(everybodys, name):
                keys.add(f"{section}.{name}")
    return frozenset(keys)


def _written(group: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Options that a mapping sets, by their dotted keys: of a group that is switched off, or set to a type, all."""
    for key, value in values.items():
        hint = typing.get_type_hints(group).get(fields_of(group)[key].name if key in fields_of(group) else key)
        inner = group_in(hint)
        if inner is None:
            yield key
        elif not isinstance(value, Mapping) or tag_of(inner) in value:
            yield from (f"{key}.{name}" for name in leaves(inner))
        else:
            yield from (f"{key}.{name}" for name in _written(inner, value))


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
