"""What a learner reads from an algorithm configuration, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.engines.deepspeed_engine import half_dtype, optimizer_is_guarded
from rllib_lmgame.learners.microbatch import MOST_TOKENS, default_tokens, kept_per_token, layer_of
from rllib_lmgame.policies.model.attention import FLASH
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.settings.sections.token_ppo import FIT, POPART, WARMUP_STEPS_AFTER_SUPERVISION, TokenPPOOptions
from rllib_lmgame.threads import AUTO

_SEED_STRIDE = 1_000_003


class LearnerConfig(Protocol):
    """The part of an algorithm's configuration that an update takes.

    Attributes:
        token_ppo_options: The token-level update.
        inference_options: How replies were sampled, and whether engines sleep meanwhile.
        text_rollout_options: How games were played.
        supervised_options: The stage before PPO, ``None`` without one.
        deepspeed_config: DeepSpeed's configuration, ``None`` without DeepSpeed.
        gamma, lambda_, vf_loss_coeff, use_kl_loss, grad_clip, grad_clip_by, num_epochs, seed: RLlib's.
    """

    token_ppo_options: TokenPPOOptions
    inference_options: InferenceOptions
    text_rollout_options: TextRolloutOptions
    supervised_options: Any
    deepspeed_config: dict[str, Any] | None
    gamma: float
    lambda_: float
    vf_loss_coeff: float
    use_kl_loss: bool
    grad_clip: float | None
    grad_clip_by: str
    num_epochs: int
    seed: int | None


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the update of one module.

    Attributes:
        ppo: The ``token_ppo`` section.
        microbatch_tokens: Tokens in one forward and backward pass.
        gamma, lam: Discount and lambda of the advantages.
        vf_loss_coeff: Weight of the value loss.
        lr_warmup_steps: Optimizer steps of linear warm-up.
        temperature: Sampling temperature, which log-probabilities are taken at
            (:func:`learning_temperature`).
        reward_scale: Factor on rewards.
        use_kl_loss: Whether the KL penalty to the reference is on.
        grad_clip: Bound on the global gradient norm; ``None`` is off.
        num_epochs: Passes over the rows.
        seed: Of the order of minibatches.
        deepspeed: DeepSpeed's configuration, or ``None`` without DeepSpeed.
    """

    ppo: TokenPPOOptions
    gamma: float
    lam: float
    vf_loss_coeff: float
    lr_warmup_steps: int = 0
    temperature: float = 1.0
    reward_scale: float = 1.0
    use_kl_loss: bool = False
    grad_clip: float | None = None
    num_epochs: int = 1
    seed: int = 0
    deepspeed: Mapping[str, Any] | None = None
    microbatch_tokens: int = MOST_TOKENS

    @classmethod
    def from_config(cls, config: LearnerConfig) -> LearnerSettings:
        """Read a configuration.

        Raises:
            ConfigError: for a way of gradient clipping the learner does not have, or a value head that has to be set
                where that is not possible.
        """
        if config.grad_clip is not None and config.grad_clip_by != "global_norm":
            raise ConfigError(
                "grad_clip_by", f"language models are clipped by `global_norm`, got {config.grad_clip_by!r}"
            )
        ppo, inference = config.token_ppo_options, config.inference_options
        _check_value_head(ppo, config.deepspeed_config)
        if ppo.value_grad_clip is not None:
            check_value_grad_clip(config.deepspeed_config)
        return cls(
            ppo=ppo,
            gamma=float(config.gamma),
            lam=float(config.lambda_),
            vf_loss_coeff=float(config.vf_loss_coeff),
            lr_warmup_steps=_warmup_steps(ppo, behind_supervision=config.supervised_options is not None),
            temperature=learning_temperature(inference.temperature),
            reward_scale=config.text_rollout_options.reward_scale,
            use_kl_loss=bool(config.use_kl_loss),
            grad_clip=None if config.grad_clip is None else float(config.grad_clip),
            num_epochs=int(config.num_epochs),
            seed=int(config.seed or 0),
            deepspeed=None if config.deepspeed_config is None else dict(config.deepspeed_config),
            microbatch_tokens=ppo.max_tokens_per_microbatch or MOST_TOKENS,
        )

    def critic_warms_up(self, num_updates: int) -> bool:
        """Whether the critic warms up and the policy rests in the update after this many."""
        return num_updates < self.ppo.critic_warmup_iterations

    def of_model(self, module: Any, on_gpu: bool) -> LearnerSettings:
        """Those for a policy's module (:class:`~rllib_lmgame.policies.model.rl_module.LanguageModelRLModule`): a
        micro-batch that is not set depends on what its activations take.
        """
        if self.ppo.max_tokens_per_microbatch is not None:
            return self
        model, options = module.language_model, module.options
        layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
        context = self.ppo.max_row_tokens or options.context_length
        kept = kept_per_token(layers, layer_of(model), model.dtype.itemsize, context, options.gradient_checkpointing)
        backbones = 1 if module.value_backbone is None else 2
        return replace(self, microbatch_tokens=default_tokens(kept * backbones, on_gpu))

    def without_critic(self) -> LearnerSettings:
        """Those of a policy without a value function: there is none to warm up."""
        return replace(self, ppo=replace(self.ppo, critic_warmup_iterations=0))

    def minibatch_seed(self, version: int, epoch: int, rank: int) -> list[int]:
        """Entropy of the generator that orders minibatches; depends on counters alone, so that a
        resumed run repeats it.
        """
        return [self.seed % _SEED_STRIDE, version, epoch, rank]


def learning_temperature(temperature: float) -> float:
    """The temperature that log-probabilities are taken at; greedy sampling, whose temperature is 0, counts as 1."""
    return float(temperature) if temperature > 0 else 1.0


def learner_threads(config: Any) -> int | None:
    """CPU threads of each learner; ``None`` leaves them as they are.

    Args:
        config: A configuration as :class:`LearnerConfig`, with RLlib's ``num_cpus_per_learner`` and, where an algorithm
            of this package set it when it started, ``learner_threads``: what ``auto`` comes to.
    """
    asked, reserved = config.token_ppo_options.num_threads, config.num_cpus_per_learner
    if isinstance(asked, int):
        return asked
    found = getattr(config, "learner_threads", None) if asked == AUTO else None
    if found is None and isinstance(reserved, int | float) and not isinstance(reserved, bool) and reserved >= 1:
        return int(reserved)
    return found


def _warmup_steps(ppo: TokenPPOOptions, behind_supervision: bool) -> int:
    if ppo.lr_warmup_steps is not None:
        return ppo.lr_warmup_steps
    return WARMUP_STEPS_AFTER_SUPERVISION if behind_supervision else 0


def _check_value_head(ppo: TokenPPOOptions, deepspeed: Mapping[str, Any] | None) -> None:
    """A fit or a rescaling sets the head's last layer, of which DeepSpeed's half-precision optimizer without ZeRO has a
    float32 copy that nobody else can reach.
    """
    stage = ((deepspeed or {}).get("zero_optimization") or {}).get("stage", 0)
    fits = ppo.critic_warmup == FIT and ppo.critic_warmup_iterations > 0
    if stage == 0 and half_dtype(deepspeed) is not None and (fits or ppo.value_normalization == POPART):
        key, other = ("critic_warmup", "gradient") if fits else ("value_normalization", "none")
        raise ConfigError(
            f"token_ppo.{key}",
            "sets the value head's last layer, which DeepSpeed in half precision allows with ZeRO only: set "
            f"`deepspeed.zero_optimization.stage` to 1, 2 or 3, or `{key}: {other}`",
        )


def check_value_grad_clip(deepspeed: Mapping[str, Any] | None, key: str = "token_ppo.value_grad_clip") -> None:
    """Raise :class:`ConfigError` for ``key`` if the value function's gradient cannot have a bound of its own."""
    if not optimizer_is_guarded(deepspeed):
        raise ConfigError(
            key,
            "DeepSpeed clips by one norm of all gradients with ZeRO and in half precision; leave it out, or use "
            "`zero_optimization: {stage: 0}` in float32",
        )


def check_numerics(options: LanguageModelOptions, deepspeed: Mapping[str, Any] | None, on_gpu: bool) -> None:
    """Check on the driver that a learner can train a model in these numerics.

    Args:
        options: Of the model.
        deepspeed: DeepSpeed's configuration, ``None`` without DeepSpeed.
        on_gpu: Whether learners have GPUs.

    Raises:
        ConfigError: for half-precision weights without float32 copies, or flash attention where its
            kernel does not run.
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
