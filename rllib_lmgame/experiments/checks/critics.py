"""Options of a critic where there is none: taken, so that one file can compare estimators, and told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllib_lmgame.algorithms.trust import SECTIONS

CRITIC_KEYS = (
    "vf_loss_coeff",
    "token_ppo.critic_target",
    "token_ppo.critic_warmup_iterations",
    "token_ppo.critic_warmup",
    "token_ppo.critic_warmup_lr",
    "token_ppo.value_normalization",
    "token_ppo.value_lr",
    "token_ppo.value_backbone_lr",
    "token_ppo.value_clip",
    "token_ppo.value_grad_clip",
    "language_model.value_hidden_size",
    "language_model.freeze_backbone_for_value",
)
"""Keys of ``config`` that say something of a critic; ``language_model.value_model`` is refused without one."""


def critic_notice(points: Sequence[Mapping[str, Any]], configs: Sequence[Any]) -> str | None:
    """Which options of a critic are without effect: those that are given, where no trained policy of any point of the
    search space has a critic.

    Args:
        points: What ``config`` says at each point.
        configs: The algorithm's configuration at each point.
    """
    scheduled = {key for config in configs for key in config.schedule_options}
    given = [key for key in CRITIC_KEYS if key in scheduled or any(_value(point, key) for point in points)]
    policies = [(config, policy) for config in configs for policy in config.trained_policies()]
    if not given or any(config.needs_critic(policy) for config, policy in policies):
        return None
    names = sorted({config.estimator_of(policy) for config, policy in policies})
    return (
        f"{', '.join(f'config.{key}' for key in given)}: without effect, no trained policy has a critic "
        f"(token_ppo.advantage_estimator: {', '.join(names)})"
    )


def _value(point: Mapping[str, Any], key: str) -> Any:
    """What is given, ``None`` if nothing is, or what would be so anyway; an option that is switched off asks for
    nothing.
    """
    section, _, name = key.rpartition(".")
    options = point.get(section) if section else point
    value = options.get(name) if isinstance(options, Mapping) else None
    return None if section and value == getattr(SECTIONS[section], name) else value
