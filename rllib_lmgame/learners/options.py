"""Options of updates, beside RLlib's own (`lr`, `gamma`, `lambda_`, `num_epochs`, ...)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal

from rllib_lmgame.base.group import REQUIRED, Group, Scheduled, option, tag
from rllib_lmgame.base.registry import AGGREGATIONS, ESTIMATORS, POLICY_LOSSES, Registry
from rllib_lmgame.base.threads import AUTO, MOST_THREADS
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.endpoints.address import ENDPOINT

WARMUP_STEPS_AFTER_SUPERVISION = 20
"""PPO begins with fresh moments, with which Adam's first steps are of full length whatever the gradient: a rate like
3e-4 can undo a warm start in one update. With the default betas twenty steps are what the moments remember."""

LEAST_VALUE_LR = 1e-5
"""Of a value head whose rate is not set: what verl's examples give a critic beside a policy at 1e-6. At 1e-6, 200 of
Adam's steps move a value of 896 features of size one by no more than 0.18."""

LEAST_TOKENS, MOST_TOKENS = 16, 8192
"""Of a micro-batch that is not set."""

IMPORTANCE_LEVELS = ("token", "turn", "turn_geometric", "trajectory", "trajectory_geometric")
"""What a ratio between sampler and learner is of: a token, or the product or the geometric mean over tokens."""

GROUP = "group"

TEACHER = "config.teacher.model"

COEFF_RANGE = 100.0
"""How far the adaptive KL coefficient may go from its first value: quiet iterations would halve it for good."""


class WarmupOptions(Group):
    """``training.critic.warmup``: first iterations, in which only the value function is trained."""

    type: str = option(
        "fit", "`fit`: ridge regression of the head's last layer; `gradient`: all of it.", choices=("fit", "gradient")
    )
    iterations: int = option(REQUIRED, "How many iterations.", ge=1)


class CriticOptions(Group):
    """``training.critic``: the value function."""

    target: str = option(
        "monte_carlo", "`monte_carlo`: the return of lambda 1; `gae`: that of `lambda`.", choices=("gae", "monte_carlo")
    )
    warmup: WarmupOptions | None = option(None, "First iterations, in which it learns alone; null: none.")
    lr: Scheduled[float | None] = option(
        None, f"Learning rate of the value head; null: `lr`, but {LEAST_VALUE_LR:g} where that is less and not 0.", gt=0
    )
    backbone_lr: float | None = option(None, "Learning rate of a `separate` backbone; null: `lr` of `config`.", gt=0)
    clip: Scheduled[float | None] = option(None, "Clip of a value's change; null is off.", gt=0)


class MaskOptions(Group):
    """``training.importance_sampling.mask``: `{low: 0.5, high: 5}` with `cap: 5` is IcePop."""

    low: float = option(REQUIRED, "Tokens whose ratio of learner to sampler is less are left out.", ge=0, le=1)
    high: float = option(REQUIRED, "Tokens whose ratio is more are left out.", ge=1)
    level: str = option("token", "What the ratio is of, as `importance_sampling.level`.", choices=IMPORTANCE_LEVELS)


class ImportanceSamplingOptions(Group):
    """``training.importance_sampling``: weights between sampler and learner."""

    cap: Scheduled[float | None] = option(
        2.0, "Cap of the truncated importance weight (not with `policy_loss: dppo`); null: no weights.", gt=0
    )
    level: str = option(
        "token",
        "What a weight is of: a token, or the product (`_geometric`: the mean) of a turn's or trajectory's ratios.",
        choices=IMPORTANCE_LEVELS,
    )
    mask: MaskOptions | None = option(None, "Tokens outside are left out of the policy loss; null is off.")


class InitialReference(Group):
    """The weights at the start of PPO, for good."""

    type: str = tag("initial", "Its name.")

    def moves_after(self, updates: int) -> bool:
        """Whether it changes after the policy's update of this number, the first being 1."""
        return False


class EMAReference(InitialReference):
    """An exponential average of the policy's weights, which begins as these."""

    type: str = tag("ema", "Its name.")
    decay: float = option(
        0.99, "After each update: `reference = decay * reference + (1 - decay) * weights`.", gt=0, lt=1
    )

    def moves_after(self, updates: int) -> bool:
        return True


class RefreshedReference(InitialReference):
    """Replaced by the policy now and then."""

    type: str = tag("refresh", "Its name.")
    every: int = option(100, "Updates after which the reference is the present policy again.", ge=1)

    def moves_after(self, updates: int) -> bool:
        return updates % self.every == 0


REFERENCES = Registry.of("training.kl.reference", "reference", InitialReference, EMAReference, RefreshedReference)


class KLOptions(Group):
    """``training.kl``: the penalty to a reference model.

    The coefficient `c` is in the unit of the advantages. Where these are not divided by their deviation
    (`normalize_advantages: center_role` or `none`), its strength in the game's own points is
    `alpha = c / reward_scale`. With a fixed reference and one decision per reply the policy goes to
    `reference * exp(q / alpha)`, normalised, `q` in points.
    """

    coef: Scheduled[float | None] = option(
        None, f"Coefficient; null: RLlib's adaptive `kl_coeff`, within a factor of {COEFF_RANGE:g} of its start.", ge=0
    )
    as_: str = tag(
        "loss", "A part of the `loss`, or `log p - log p_ref` off each token's `reward`.", choices=("loss", "reward")
    )
    loss_estimator: str = option(
        "k2", "`k2` has the gradient of KL(policy || reference), `k3` that of the reverse.", choices=("k2", "k3")
    )
    reference: Annotated[Any, REFERENCES] = option(
        "initial",
        "The model that the policy is kept near: its `initial` weights, an exponential average of its weights (`ema`), "
        "or a copy of them that is renewed now and then (`refresh`).",
    )


class TrainingOptions(Group):
    """The ``training`` section."""

    advantage_estimator: Annotated[Any, ESTIMATORS] = option(
        "gae", "Advantage estimator, with its own options: `{type: gigpo, step_weight: 0.5}`."
    )
    critic: CriticOptions = option(CriticOptions(), "The value function, where the estimator asks one.")
    normalize_advantages: str | None = option(
        None,
        "Mean 0, deviation 1 over the `batch`, a `group` (level and role), `game` or `role`; `center_role` centres "
        "only. null: `none` if the estimator has an own scale, else `batch`.",
        choices=("batch", GROUP, "game", "role", "center_role", "none"),
    )
    policy_loss: Annotated[Any, POLICY_LOSSES] = option("clip", "Policy loss, with its own options.")
    aggregation: Annotated[Any, AGGREGATIONS] = option(
        "token_mean", "How the policy loss of a minibatch is averaged; the value loss is a mean over tokens."
    )
    importance_sampling: ImportanceSamplingOptions | None = option(
        ImportanceSamplingOptions(), "Weights between sampler and learner; null: none."
    )
    kl: KLOptions | None = option(None, "Penalty on the KL divergence to a frozen reference model; null: none.")
    env_token_loss_weight: float = option(
        0.0, "Weight of the mean cross-entropy of the game's text after the first prompt.", ge=0
    )
    max_logprob_diff: float | None = option(
        0.5, "A policy's first `logprob_diff_mean` above this, or NaN, ends the run; null: it goes on.", gt=0
    )
    num_minibatches: Scheduled[int] = option(
        1, "Optimizer steps per epoch; fewer where a learner has fewer episodes or groups.", ge=1, le=10_000
    )
    max_tokens_per_microbatch: int | Literal["auto"] | None = option(
        AUTO, "Tokens of one pass; `auto`: a power of two that fits, at most 8192.", ge=LEAST_TOKENS
    )
    share_prompts: bool = option(True, "Compute the common beginning of rows of a micro-batch once.")
    max_row_tokens: int | None = option(None, "Longest row; null takes the policy's `context_length`.", ge=8)
    num_threads: int | Literal["auto"] | None = option(
        AUTO,
        "CPU threads of each learner; `auto` divides the trial's cores, null: RLlib's `num_cpus_per_learner`.",
        ge=1,
        le=MOST_THREADS,
    )
    head_chunk_tokens: int = option(4096, "Tokens whose logits are held at once.", ge=1)
    offload_during_rollout: bool = option(False, "Learners keep their states in host memory while engines play.")
    torch_compile: bool = option(False, "Compile norms and feed-forward layers by PyTorch.")
    optimizer: str = option(
        "adamw",
        "`adamw`, `muon` (for matrices of layers, in steps of AdamW's size, which the others have), or a class of "
        "PyTorch's kind: `bitsandbytes.optim:AdamW8bit`.",
        stranger=is_name,
    )
    weight_decay: float = option(0.0, "Weight decay.", ge=0)
    adam_betas: tuple[float, float] = option((0.9, 0.95), "AdamW betas.", ge=0, lt=1)
    lr_warmup_steps: int | None = option(
        None, f"Steps of linear warm-up; null: {WARMUP_STEPS_AFTER_SUPERVISION} after a warm start, else 0.", ge=0
    )
    ema_decay: float | None = option(None, "Decay of averaged weights, for evaluation and export.", gt=0, lt=1)

    @property
    def needs_critic(self) -> bool:
        return bool(self.advantage_estimator.needs_critic)

    @property
    def needs_reference(self) -> bool:
        return self.kl is not None or bool(self.advantage_estimator.needs_reference)

    @property
    def compares(self) -> str | None:
        """The option that compares the episodes of a group, if one does."""
        if self.advantage_estimator.needs_groups:
            return f"training.advantage_estimator `{self.advantage_estimator.type}`"
        return f"training.normalize_advantages `{GROUP}`" if self.normalize_advantages == GROUP else None

    @property
    def microbatch(self) -> int | None:
        """Tokens of a micro-batch that were asked for; ``None`` for ``auto``."""
        asked = self.max_tokens_per_microbatch
        return None if asked == AUTO else asked


class TeacherOptions(Group):
    """The ``teacher`` section: a model that judges each token the policy has sampled."""

    model: str = option(
        REQUIRED,
        "The teacher, of the policy's own vocabulary: a checkpoint, directory or hub id, which each learner holds, or "
        "`openai:MODEL@URL`, on vLLM's server.",
        path=True,
        stranger=is_name,
    )
    coefficient: Scheduled[float] = option(
        1.0, "Advantage lost for each nat of log-probability above the teacher's.", gt=0
    )
    game: bool = option(True, "The advantages of the game's rewards count beside it; else the teacher alone does.")
    trust_remote_code: bool = option(False, "Run the code that the teacher's directory brings along.", stranger=False)

    @property
    def is_asked(self) -> bool:
        """Whether it is behind an endpoint, which is asked, and learners hold none."""
        return self.model.startswith(ENDPOINT)


class ReturnValueOptions(Group):
    """The ``action_values`` section of ``LMGameMC``."""

    gamma: float = option(0.99, "Discount per token of a reply.", ge=0, le=1)
    cql_weight: float = option(0.01, "Weight of the cross-entropy that lowers values of tokens not taken.", ge=0)
    policy_weight: float = option(1.0, "Weight of the policy's own cross-entropy; 0 leaves the policy as it is.", ge=0)
    q_init: float = option(0.0, "What values of tokens begin at.")
    beta: float = option(8.0, "Play with logits + `beta` (Q - V); 0: without the values, on any engine.", ge=0)


class TargetValueOptions(ReturnValueOptions):
    """The ``action_values`` section of ``LMGameCQL``."""

    target_rate: float = option(0.005, "Step of the slow copies of values in each optimizer step.", gt=0, le=1)


class ExpectileValueOptions(TargetValueOptions):
    """The ``action_values`` section of ``LMGameILQL``."""

    tau: float = option(0.7, "Expectile of action values that a state's value is; 0.5 is the mean.", gt=0, lt=1)


class WeightUse(Enum):
    TRAINING = "training"
    """Playing the episodes that are trained on."""
    EVALUATION = "evaluation"
    """Playing the episodes of an evaluation."""
    EXPORT = "export"
    """The Hugging Face directory of a checkpoint."""


HALF = ("bf16", "bfloat16", "fp16")
"""DeepSpeed's sections of half precision."""


def half_precision(deepspeed: Any) -> bool:
    """Whether DeepSpeed casts the weights and keeps float32 copies."""
    return any(((deepspeed or {}).get(key) or {}).get("enabled") for key in HALF)


def optimizer_is_guarded(deepspeed: Any) -> bool:
    """Whether our optimizer, whose parameters are whole, clips and checks gradients itself; else ZeRO does."""
    return not half_precision(deepspeed) and not ((deepspeed or {}).get("zero_optimization") or {}).get("stage", 0)


def divides_weights(deepspeed: Any) -> bool:
    """Whether ZeRO 3 leaves each learner a share of the weights."""
    zero = (deepspeed or {}).get("zero_optimization")
    return isinstance(zero, Mapping) and zero.get("stage") == 3


def offloaded(zero: Any, what: str = "offload_optimizer") -> bool:
    """Whether ``zero_optimization`` puts the optimizer's states, or the weights, into host memory."""
    section = zero.get(what) if isinstance(zero, Mapping) else None
    return isinstance(section, Mapping) and section.get("device", "none") != "none"


def learner_threads(config: Any) -> int | None:
    """CPU threads of each learner; ``None`` leaves them. Once started, ``config.learner_threads`` is ``auto``."""
    asked, reserved = config.run.training.num_threads, config.num_cpus_per_learner
    if isinstance(asked, int):
        return asked
    found = getattr(config, "learner_threads", None) if asked == AUTO else None
    if found is None and isinstance(reserved, int | float) and not isinstance(reserved, bool) and reserved >= 1:
        return int(reserved)
    return found
