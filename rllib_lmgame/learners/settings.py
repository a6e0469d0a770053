"""What a learner reads from an algorithm configuration, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.engines.deepspeed_engine import half_dtype
from rllib_lmgame.learners.options import WARMUP_STEPS_AFTER_SUPERVISION, TokenPPOOptions
from rllib_lmgame.policies.model.attention import FLASH
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.schema import build

_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the update of one module.

    Attributes:
        ppo: The ``token_ppo`` section.
        lr_warmup_steps: Optimizer steps of linear warm-up.
        temperature: Sampling temperature, which log-probabilities are taken at; greedy sampling counts as 1.
        reward_scale: Factor on rewards.
        gamma, lam: Discount and lambda of the advantages.
        vf_loss_coeff: Weight of the value loss.
        use_kl_loss: Whether the KL penalty to the reference is on.
        grad_clip: Bound on the global gradient norm; ``None`` is off.
        num_epochs: Passes over the rows.
        seed: Of the order of minibatches.
        deepspeed: DeepSpeed's configuration, or ``None`` without DeepSpeed.
        shares_gpu: Engines that sleep during the update wait for the GPU memory it has used.
    """

    ppo: TokenPPOOptions
    lr_warmup_steps: int = 0
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
    shares_gpu: bool = False

    @classmethod
    def from_config(cls, config: Any) -> LearnerSettings:
        """Read an RLlib ``PPOConfig`` with our option groups (each an option group, a mapping or absent).

        They are ``token_ppo_options``, ``inference_options``, ``text_rollout_options``, ``supervised_options`` and
        ``deepspeed_config``.

        Raises:
            ConfigError: for a way of gradient clipping the learner does not have, or an invalid section.
        """
        if config.grad_clip is not None and config.grad_clip_by != "global_norm":
            raise ConfigError(
                "grad_clip_by", f"language models are clipped by `global_norm`, got {config.grad_clip_by!r}"
            )
        ppo = getattr(config, "token_ppo_options", None) or {}
        temperature = float(_field(config, "inference_options", "temperature", 1.0))
        deepspeed = getattr(config, "deepspeed_config", None)
        if not isinstance(ppo, TokenPPOOptions):
            ppo = build(TokenPPOOptions, ppo, "token_ppo")
        return cls(
            ppo=ppo,
            lr_warmup_steps=_warmup_steps(
                ppo, behind_supervision=getattr(config, "supervised_options", None) is not None
            ),
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
            shares_gpu=bool(_field(config, "inference_options", "sleep_during_update", False)),
        )

    def minibatch_seed(self, version: int, epoch: int, rank: int) -> list[int]:
        """Entropy of the generator that orders minibatches; depends on counters alone, so that a resumed run repeats
        it.
        """
        return [self.seed % _SEED_STRIDE, version, epoch, rank]


def _warmup_steps(ppo: TokenPPOOptions, behind_supervision: bool) -> int:
    if ppo.lr_warmup_steps is not None:
        return ppo.lr_warmup_steps
    return WARMUP_STEPS_AFTER_SUPERVISION if behind_supervision else 0


def check_numerics(options: LanguageModelOptions, deepspeed: Mapping[str, Any] | None, on_gpu: bool) -> None:
    """Check on the driver that a learner can train a model in these numerics.

    Args:
        options: Of the model.
        deepspeed: DeepSpeed's configuration, ``None`` without DeepSpeed.
        on_gpu: Whether learners have GPUs.

    Raises:
        ConfigError: for half-precision weights without float32 copies, or flash attention where its kernel does not
            run.
    """
    if options.dtype in ("bfloat16", "float16") and half_dtype(deepspeed) is None:
        raise ConfigError(
            "language_model.dtype",
            f"{options.dtype} weights lose small optimizer steps in rounding unless a `bf16` or `fp16` section of "
            "`deepspeed` keeps float32 copies; use `auto`: float32 weights, bfloat16 passes on a GPU",
        )
    if options.attn_implementation == FLASH and (not on_gpu or options.dtype == "float32"):
        raise ConfigError(
            "language_model.attn_implementation",
            "flash_attention_2 runs on a GPU and in half precision: set num_gpus_per_learner and `dtype: auto`, "
            "or `attn_implementation: auto`",
        )


def _field(config: Any, section: str, name: str, default: Any) -> Any:
    """``config.section.name`` where the section is a mapping, an option group or missing."""
    value = getattr(config, section, None)
    if isinstance(value, Mapping):
        return value.get(name, default)
    return getattr(value, name, default)
