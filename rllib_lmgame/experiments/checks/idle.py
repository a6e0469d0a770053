"""Options that another option of theirs leaves nothing to do: taken, so that one file can compare settings, and told.
Those that an estimator does not read are in :mod:`rllib_lmgame.experiments.checks.unread`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rllib_lmgame.experiments.checks.unread import is_given
from rllib_lmgame.learners.scheduled import own_keys

_WARMUP = ("token_ppo.critic_warmup", "token_ppo.critic_warmup_lr")
_ADAPTING = ("kl_target", "token_ppo.kl_coeff_range")


def idle_notices(points: Sequence[Mapping[str, Any]], configs: Sequence[Any]) -> Iterator[str]:
    """What to say of options that are given and have nothing to do at any point of the search space.

    Args:
        points: What ``config`` says at each point.
        configs: The algorithm's configuration at each point.
    """
    policies = [(config, policy) for config in configs for policy in config.trained_policies()]
    of_modules = [config.get_config_for_module(policy) for config, policy in policies]

    def given(keys: Collection[str]) -> list[str]:
        return [f"config.{key}" for key in keys if is_given(key, points, configs)]

    critics = any(config.needs_critic(policy) for config, policy in policies)
    if critics and not any(module.token_ppo_options.critic_warmup_iterations for module in of_modules):
        for key in given(_WARMUP):
            yield f"{key}: without effect, there is no warm-up of the critic; set token_ppo.critic_warmup_iterations"
    if any(module.use_kl_loss for module in of_modules) and all(_stays_at_0(*pair) for pair in policies):
        for key in given(_ADAPTING):
            yield f"{key}: without effect, kl_coeff: 0 stays 0 whatever it is multiplied by"
    yield from _of_stage(configs, given)


def _stays_at_0(config: Any, policy: str) -> bool:
    """Whether the coefficient of the KL penalty begins with 0 and is RLlib's adaptive one, which is multiplied."""
    module, own = config.get_config_for_module(policy), own_keys(config, policy)
    scheduled = "kl_coeff" in config.schedule_options and "kl_coeff" not in own
    return module.kl_coeff == 0 and module.token_ppo_options.kl_schedule is None and not scheduled


def _of_stage(configs: Sequence[Any], given: Any) -> Iterator[str]:
    """Of the supervised stage."""
    stages = [config.supervised_options for config in configs]
    if not stages or any(stage is None for stage in stages):
        return
    section = configs[0].section_of("supervised_options")
    if not any(stage.validates for stage in stages):
        for key in given([f"{section}.evaluate_every", f"{section}.evaluation_episodes"]):
            yield f"{key}: without effect, nothing is validated; set stop_success or stop_invalid_rate"
    late = next((stage for stage in stages if stage.lr_warmup_steps > stage.max_steps), None)
    if late is not None:
        yield (
            f"config.{section}.lr_warmup_steps: {late.lr_warmup_steps} steps of warm-up are more than max_steps: "
            f"{late.max_steps}, so that the learning rate never comes to lr: {late.lr:g}"
        )
