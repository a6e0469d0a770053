"""What a learner reads from an algorithm configuration, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.options import TokenPPOOptions
from rllib_lmgame.schema import build

_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the update of one module.

    Attributes:
        ppo: The ``token_ppo`` section.
        temperature: Sampling temperature, which log-probabilities are taken at; greedy sampling counts as 1.
        reward_scale: Factor on rewards.
        gamma, lam: Discount and lambda of the advantages.
        vf_loss_coeff: Weight of the value loss.
        use_kl_loss: Whether the KL penalty to the reference is on.
        grad_clip: Bound on the global gradient norm; ``None`` is off.
        num_epochs: Passes over the rows.
        seed: Of the order of minibatches.
        deepspeed: DeepSpeed's configuration, or ``None`` without DeepSpeed.
    """

    ppo: TokenPPOOptions
    temperature: float = 1.0
    reward_scale: float = 1.0
    gamma: float = 1.0
    lam: float = 0.95
    vf_loss_coeff: float = 0.5
    use_kl_loss: bool = False
    grad_clip: float | None = None
    num_epochs: int = 1
    seed: int = 0
    deepspeed: Mapping[str, Any] | None = None

    @classmethod
    def from_config(cls, config: Any) -> LearnerSettings:
        """Read an RLlib ``PPOConfig`` with our option groups (each an option group, a mapping or absent).

        They are ``token_ppo_options``, ``inference_options``, ``text_rollout_options`` and ``deepspeed_config``.

        Raises:
            ConfigError: for a way of gradient clipping the learner does not have, or an invalid section.
        """
        if config.grad_clip is not None and config.grad_clip_by != "global_norm":
            raise ConfigError("grad_clip_by", f"language models are clipped by `global_norm`, got {config.grad_clip_by!r}")
        ppo = getattr(config, "token_ppo_options", None) or {}
        temperature = float(_field(config, "inference_options", "temperature", 1.0))
        deepspeed = getattr(config, "deepspeed_config", None)
        return cls(
            ppo=ppo if isinstance(ppo, TokenPPOOptions) else build(TokenPPOOptions, ppo, "token_ppo"),
            temperature=temperature if temperature > 0 else 1.0,
            reward_scale=float(_field(config, "text_rollout_options", "reward_scale", 1.0)),
            gamma=float(config.gamma),
            lam=float(getattr(config, "lambda_", 1.0)),
            vf_loss_coeff=float(getattr(config, "vf_loss_coeff", 0.0)),
            use_kl_loss=bool(getattr(config, "use_kl_loss", False)),
            grad_clip=None if config.grad_clip is None else float(config.grad_clip),
            num_epochs=int(config.num_epochs or 1),
            seed=int(config.seed or 0),
            deepspeed=None if deepspeed is None else dict(deepspeed),
        )

    def minibatch_seed(self, version: int, epoch: int, rank: int) -> list[int]:
        """Entropy of the generator that orders minibatches; depends on counters alone, so that a resumed run repeats it."""
        return [self.seed % _SEED_STRIDE, version, epoch, rank]


def _field(config: Any, section: str, name: str, default: Any) -> Any:
    """``config.section.name`` where the section is a mapping, an option group or missing."""
    value = getattr(config, section, None)
    if isinstance(value, Mapping):
        return value.get(name, default)
    return getattr(value, name, default)
