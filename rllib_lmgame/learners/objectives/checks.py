"""What the options of an objective ask of each other, told before anything starts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.objectives.policy_losses import resolve_policy_loss
from rllib_lmgame.settings.sections.token_ppo import CONSTANT_LENGTH, GRADIENT, REWARD, TokenPPOOptions


def check_objective(
    ppo: TokenPPOOptions, *, use_kl_loss: bool = False, entropy_coeff: Any = 0.0, scheduled: Collection[str] = ()
) -> None:
    """The options of the loss in the section ``token_ppo``.

    Args:
        ppo: The section.
        use_kl_loss, entropy_coeff: RLlib's options: whether there is a reference model and a penalty; the weight of
            the entropy bonus, a number or a schedule.
        scheduled: Options of the section that follow a schedule, and are set whatever their present values are.

    Raises:
        ConfigError: for one that has no effect beside another, or does not go with it.
    """
    _check_policy_loss(ppo)
    _check_importance(ppo, "importance_cap" in scheduled)
    _check_kl(ppo, use_kl_loss)
    if ppo.critic_warmup_lr is not None and ppo.critic_warmup != GRADIENT:
        raise ConfigError(
            "token_ppo.critic_warmup_lr",
            f"has no effect with critic_warmup: {ppo.critic_warmup}, which takes no steps; leave it out, or set "
            f"critic_warmup: {GRADIENT}",
        )
    if ppo.entropy_target is not None and not isinstance(entropy_coeff, int | float):
        raise ConfigError(
            "token_ppo.entropy_target",
            f"does not go with a schedule, entropy_coeff: {entropy_coeff}; give the number that it begins with",
        )
    rated = "entropy_rate" in scheduled or ppo.entropy_rate != TokenPPOOptions.entropy_rate
    if ppo.entropy_target is None and rated:
        raise ConfigError("token_ppo.entropy_rate", "has no effect without an entropy_target")
    if (ppo.loss_length is not None) != (ppo.loss_aggregation == CONSTANT_LENGTH):
        raise ConfigError(
            "token_ppo.loss_length",
            f"has no effect without loss_aggregation: {CONSTANT_LENGTH}"
            if ppo.loss_length is not None
            else f"loss_aggregation: {CONSTANT_LENGTH} needs a constant: set the tokens of the longest trajectory, "
            "e.g. max_tokens_per_turn times the turns of a game",
        )


def _check_policy_loss(ppo: TokenPPOOptions) -> None:
    loss, name = resolve_policy_loss(ppo.policy_loss), f"policy_loss: {ppo.policy_loss}"
    for key, used in (("clip_low", loss.clip_low), ("clip_high", loss.clip_high)):
        if used is None and getattr(ppo, key) is not None:
            raise ConfigError(f"token_ppo.{key}", f"has no effect with {name}; leave it out")
    if ppo.dual_clip is not None and not loss.dual_clip:
        raise ConfigError("token_ppo.dual_clip", f"has no effect with {name}, which has no clipped loss; leave it out")


def _check_kl(ppo: TokenPPOOptions, use_kl_loss: bool) -> None:
    for key in () if use_kl_loss else ("kl_gradient", "kl_estimator"):
        if getattr(ppo, key) != getattr(TokenPPOOptions, key):
            raise ConfigError(f"token_ppo.{key}", "has no effect without use_kl_loss: true; leave it out")
    if ppo.kl_in != REWARD:
        return
    if not use_kl_loss:
        raise ConfigError(
            "token_ppo.kl_in", "reward needs a reference model: set use_kl_loss: true, which turns the penalty on"
        )
    if ppo.kl_gradient != TokenPPOOptions.kl_gradient:
        raise ConfigError(
            "token_ppo.kl_gradient", "has no effect with kl_in: reward, whose penalty has no gradient; leave it out"
        )


def _check_importance(ppo: TokenPPOOptions, capped: bool) -> None:
    band, defaults = ppo.importance_band, TokenPPOOptions
    if band is None and ppo.importance_band_level != defaults.importance_band_level:
        raise ConfigError("token_ppo.importance_band_level", "has no effect without an importance_band")
    if band is not None and (len(band) != 2 or not 0 <= band[0] <= 1 <= band[1]):
        raise ConfigError(
            "token_ppo.importance_band",
            f"must be [low, high] with 0 <= low <= 1 <= high, got {band}: a ratio of 1, where sampler and learner "
            "agree, lies inside",
        )
    if resolve_policy_loss(ppo.policy_loss).to_sampler:
        if capped or ppo.importance_cap not in (defaults.importance_cap, None):
            raise ConfigError(
                "token_ppo.importance_cap",
                f"has no effect with policy_loss: {ppo.policy_loss}, whose ratio is to the sampler; leave it out",
            )
    elif ppo.importance_cap is not None:
        return
    if ppo.importance_level != defaults.importance_level:
        raise ConfigError("token_ppo.importance_level", "has no effect without importance weights (importance_cap)")
