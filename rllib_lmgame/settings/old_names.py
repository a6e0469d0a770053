"""Keys that had other names before. Who writes an old one is told the new one: nothing is translated in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rllib_lmgame.base.errors import CheckpointError, ConfigError


class New(NamedTuple):
    """What an old key is now: its dotted key below ``config``, and how to write a value of another form."""

    key: str
    how: str = ""


OLD_NAMES: Mapping[str, New] = {
    "schedules": New("lr", "or another option, as its value: {points: ...}"),
    "use_kl_loss": New("token_ppo.kl", "{} for true, null for false"),
    "token_ppo.baseline_decay": New("token_ppo.advantage_estimator.baseline_decay"),
    "token_ppo.critic_target": New("token_ppo.critic.target"),
    "token_ppo.critic_warmup_iterations": New("token_ppo.critic.warmup.iterations", "warmup: null for 0"),
    "token_ppo.critic_warmup": New("token_ppo.critic.warmup.type"),
    "token_ppo.critic_warmup_lr": New("token_ppo.critic.warmup.lr"),
    "token_ppo.value_normalization": New("token_ppo.critic.normalization"),
    "token_ppo.value_lr": New("token_ppo.critic.lr"),
    "token_ppo.value_backbone_lr": New("token_ppo.critic.backbone_lr"),
    "token_ppo.value_clip": New("token_ppo.critic.clip"),
    "token_ppo.value_grad_clip": New("token_ppo.critic.grad_clip"),
    "token_ppo.clip_low": New("token_ppo.policy_loss.low"),
    "token_ppo.clip_high": New("token_ppo.policy_loss.high"),
    "token_ppo.dual_clip": New("token_ppo.policy_loss.dual"),
    "token_ppo.loss_aggregation": New("token_ppo.aggregation"),
    "token_ppo.loss_length": New("token_ppo.aggregation.length"),
    "token_ppo.importance_cap": New("token_ppo.importance.cap", "importance: null for no weights"),
    "token_ppo.importance_level": New("token_ppo.importance.level"),
    "token_ppo.importance_band": New("token_ppo.importance.band", "{low: ..., high: ...}"),
    "token_ppo.importance_band_level": New("token_ppo.importance.band.level"),
    "token_ppo.entropy_target": New("token_ppo.entropy.target"),
    "token_ppo.entropy_rate": New("token_ppo.entropy.rate"),
    "token_ppo.reference": New("token_ppo.kl.reference"),
    "token_ppo.kl.reference.kind": New("token_ppo.kl.reference.type"),
    "token_ppo.kl_in": New("token_ppo.kl.in"),
    "token_ppo.kl_estimator": New("token_ppo.kl.estimator"),
    "token_ppo.kl_gradient": New("token_ppo.kl.gradient"),
    "token_ppo.kl_coeff_range": New("token_ppo.kl.coeff_range"),
    "token_ppo.kl_schedule": New("token_ppo.kl.schedule"),
    "data_selection.drop_constant_groups": New("data_selection.constant_groups", "drop for true, keep for false"),
    "data_selection.max_refill": New("data_selection.constant_groups.max_refill"),
    "data_selection.overlong_tokens": New("data_selection.overlong.tokens", "overlong: null for null"),
    "data_selection.overlong_buffer": New("data_selection.overlong.buffer"),
    "data_selection.overlong_penalty": New("data_selection.overlong.penalty"),
    "data_selection.normalize_deviation": New("data_selection.normalize_rewards.deviation"),
    "league.power": New("league.matchmaking.power"),
    "league.forgotten_share": New("league.forgotten.share", "forgotten: null for 0"),
    "league.forgotten_below": New("league.forgotten.below"),
    **{
        f"{stage}.{old}": New(f"{stage}.stop_at.{new}")
        for stage in ("warm_start", "supervised")
        for old, new in {
            "stop_success": "success",
            "stop_invalid_rate": "invalid_rate",
            "evaluate_every": "every",
            "evaluation_episodes": "episodes",
        }.items()
    },
}
"""Old key below ``config`` -> the new one."""


def new_name(path: str) -> str | None:
    """What to say of an old dotted key (``config.token_ppo.clip_high``), or ``None``."""
    parts = path.split(".")
    for start in range(len(parts)):
        old = ".".join(parts[start:])
        new = OLD_NAMES.get(old)
        if new is not None:
            above = parts[:start] if "." in old else parts[: parts.index("config") + 1] if "config" in parts else []
            return _said(".".join([*above, new.key]), new.how)
    return None


def _said(key: str, how: str) -> str:
    return f"is now {key}" + (f" ({how})" if how else "")


def old_keys(values: Any, path: str = "config") -> Iterator[str]:
    """Old keys anywhere in a mapping."""
    for key, value in values.items() if isinstance(values, Mapping) else ():
        where = f"{path}.{key}"
        yield from (where,) if new_name(where) else old_keys(value, where)


def check_saved(values: Any, file: Path) -> None:
    """Raise :class:`CheckpointError` if the configuration in a checkpoint's file has an old key."""
    old = next(old_keys(values), None)
    if old is not None:
        models = file.parent / "hf"
        raise CheckpointError(
            f"{file} was written by an earlier version of this package: {old} {new_name(old)}. Its models in {models} "
            f"are as they were: begin with language_model.model: {models}; to go on with the run, use the version that "
            "wrote it"
        )


def check_old(config: Mapping[str, Any], sections: Iterable[str]) -> None:
    """Raise :class:`ConfigError` for the first old key of a configuration and its sections, saying the others, too."""
    found = list(old_keys({key: value if key in sections else None for key, value in config.items()}))
    for first, *others in [found] if found else ():
        raise ConfigError(first, "; ".join([str(new_name(first)), *(f"{key} {new_name(key)}" for key in others)]))


def check_name(path: str) -> None:
    """Raise :class:`ConfigError` if ``path`` is an old key."""
    said = new_name(path)
    if said is not None:
        raise ConfigError(path, said)
