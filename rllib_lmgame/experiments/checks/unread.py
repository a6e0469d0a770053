"""Options that nothing reads as the others are set: taken, so that one file can compare estimators, and told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rllib_lmgame.algorithms.trust import SECTIONS
from rllib_lmgame.learners.scheduled import own_keys
from rllib_lmgame.settings.algorithms import SFT

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

PPO_KEYS = (
    *("lr", "num_epochs", "minibatch_size", "gamma", "lambda", "lambda_", "entropy_coeff"),
    *("use_kl_loss", "kl_coeff", "kl_target"),
    *(
        f"token_ppo.{name}"
        for name in (
            *("advantage_estimator", "baseline_decay", "objective", "normalize_advantages", "advantage_std_floor"),
            *("policy_loss", "clip_low", "clip_high", "dual_clip", "entropy_target", "entropy_rate"),
            *("importance_cap", "importance_level", "importance_band", "importance_band_level", "staleness_limit"),
            *("reference", "kl_in", "kl_estimator", "kl_gradient", "kl_coeff_range", "kl_schedule"),
        )
    ),
    *CRITIC_KEYS,
)
"""Keys of ``config`` that say something of PPO's update alone, which ``LMGameSFT`` has none of."""

_AS_WITHOUT = {"gamma": 1, "evaluation_config.measures": [], "use_kl_loss": False, "entropy_coeff": 0}
"""Values of options outside the sections that ask for nothing."""


def critic_notice(points: Sequence[Mapping[str, Any]], configs: Sequence[Any]) -> str | None:
    """Which options of a critic are without effect: those that are given, where no trained policy of any point of the
    search space has a critic.

    Args:
        points: What ``config`` says at each point.
        configs: The algorithm's configuration at each point.
    """
    if all(config.entry == SFT for config in configs):
        return None  # Of PPO's options altogether is told below.
    given = [key for key in CRITIC_KEYS if is_given(key, points, configs)]
    policies = [(config, policy) for config in configs for policy in config.trained_policies()]
    if not given or any(config.needs_critic(policy) for config, policy in policies):
        return None
    names = sorted({config.estimator_of(policy) for config, policy in policies})
    return (
        f"{', '.join(f'config.{key}' for key in given)}: without effect, no trained policy has a critic "
        f"(token_ppo.advantage_estimator: {', '.join(names)})"
    )


def unread_notices(points: Sequence[Mapping[str, Any]], configs: Sequence[Any]) -> list[str]:
    """What to say of options that are given and that no trained policy of any point of the search space reads.

    Args:
        points, configs: As of :func:`critic_notice`.
    """
    if all(config.entry == SFT for config in configs):
        given = [f"config.{key}" for key in PPO_KEYS if is_given(key, points, configs)]
        if not given:
            return []
        return [f"{', '.join(given)}: without effect, {SFT.name} learns by the options of config.supervised"]
    policies = [(config, policy) for config in configs for policy in config.trained_policies()]
    names = ", ".join(sorted({config.estimator_of(policy) for config, policy in policies}))
    return [
        f"config.{key}: without effect, {why.format(estimators=names)}"
        for key, (reads, why) in _READ.items()
        if is_given(key, points, configs) and not any(reads(config, policy) for config, policy in policies)
    ]


def _reads_lambda(config: Any, policy: str) -> bool:
    by_gae = config.get_config_for_module(policy).token_ppo_options.critic_target == "gae"
    return _reads("lam", config, policy) or (by_gae and config.needs_critic(policy))


def _reads(setting: str, config: Any, policy: str) -> bool:
    """Whether a policy's estimator or its objective reads it, as one of somebody's own may."""
    from rllib_lmgame.learners.advantages import resolve_estimator

    ppo = config.get_config_for_module(policy).token_ppo_options
    return ":" in ppo.objective or setting in resolve_estimator(ppo.advantage_estimator).reads


def _scales(config: Any, policy: str) -> bool:
    """Whether a policy's advantages are divided by their deviation."""
    from rllib_lmgame.learners.advantages import resolve_estimator

    ppo = config.get_config_for_module(policy).token_ppo_options
    mode = resolve_estimator(ppo.advantage_estimator).normalize_mode(ppo.normalize_advantages)
    return mode not in ("center_role", "none") or ":" in ppo.objective


def _has_kl(config: Any, policy: str) -> bool:
    of_module = config.get_config_for_module(policy)
    return of_module.use_kl_loss or ":" in of_module.token_ppo_options.objective


def _begins_kl(config: Any, policy: str) -> bool:
    """Whether the coefficient of a penalty begins with ``kl_coeff``."""
    schedule = config.get_config_for_module(policy).token_ppo_options.kl_schedule
    return schedule is None and _has_kl(config, policy)


def _adapts_kl(config: Any, policy: str) -> bool:
    """Whether the coefficient of a penalty goes by the divergence from there."""
    scheduled = "kl_coeff" in config.schedule_options and "kl_coeff" not in own_keys(config, policy)
    return _begins_kl(config, policy) and not scheduled


def _draws(config: Any, policy: str) -> bool:
    return config.inference_options.temperature > 0 or "inference.temperature" in config.schedule_options


_NO_LAMBDA = "token_ppo.advantage_estimator ({estimators}) does not read it as it is set"
_READ: Mapping[str, tuple[Callable[[Any, str], bool], str]] = {
    "lambda": (_reads_lambda, _NO_LAMBDA),
    "lambda_": (_reads_lambda, _NO_LAMBDA),
    "gamma": (partial(_reads, "gamma"), "token_ppo.advantage_estimator ({estimators}) does not discount"),
    "kl_coeff": (_begins_kl, "no KL penalty begins with it; set use_kl_loss: true, and no token_ppo.kl_schedule"),
    "kl_target": (
        _adapts_kl,
        "no KL coefficient goes by it; set use_kl_loss: true, and no token_ppo.kl_schedule or schedules.kl_coeff",
    ),
    "token_ppo.kl_coeff_range": (_has_kl, "there is no KL penalty; set use_kl_loss: true"),
    "token_ppo.baseline_decay": (
        partial(_reads, "baseline_decay"),
        "it belongs to token_ppo.advantage_estimator: rae",
    ),
    "token_ppo.advantage_std_floor": (_scales, "advantages are not divided by their deviation (normalize_advantages)"),
    "evaluation_config.measures": (
        lambda config, _: bool(config.evaluation_interval),
        "there are no evaluations; set config.evaluation_interval",
    ),
    "data_selection.drop_constant_groups": (
        _draws,
        "with inference.temperature: 0 all episodes of a group are alike unless the other players draw",
    ),
}
"""Keys of ``config`` -> whether a policy reads them, and what is said if none does."""


def is_given(key: str, points: Sequence[Mapping[str, Any]], configs: Sequence[Any]) -> bool:
    """Whether an option is given at some point, or follows a schedule."""
    return any(key in config.schedule_options for config in configs) or any(_value(point, key) for point in points)


def _value(point: Mapping[str, Any], key: str) -> Any:
    """What is given, ``None`` if nothing is, or what would be so anyway; an option that is switched off asks for
    nothing.
    """
    section, _, name = key.rpartition(".")
    options = point.get(section) if section else point
    value = options.get(name) if isinstance(options, Mapping) else None
    default = getattr(SECTIONS[section], name) if section in SECTIONS else _AS_WITHOUT.get(key)
    return None if value == default else value
