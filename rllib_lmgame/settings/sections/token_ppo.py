"""Options of the token-level PPO update, beside RLlib's own (`lr`, `gamma`, `lambda_`, `num_epochs`, ...)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.settings.plugins import ESTIMATORS, OBJECTIVES, POLICY_LOSSES
from rllib_lmgame.settings.schema import build, option, with_new_names
from rllib_lmgame.settings.trust import is_name, is_number
from rllib_lmgame.threads import MOST_THREADS

WARMUP_STEPS_AFTER_SUPERVISION = 20
"""PPO begins with fresh moments, with which Adam's first steps are of full length whatever the gradient: a rate like
3e-4 can undo a warm start in one update. With the default betas twenty steps are what the moments remember."""


LEAST_VALUE_LR = 1e-5
"""Of a value head whose rate is not set: what verl's examples give a critic beside a policy at 1e-6. At 1e-6, 200 of
Adam's steps move a value of 896 features of size one by no more than 0.18."""

LEAST_TOKENS, MOST_TOKENS = 16, 8192
"""Of a micro-batch that is not set."""

BASELINE_DECAY = 0.95
"""Of the running mean per game and role (SPIRAL)."""

IMPORTANCE_LEVELS = ("token", "turn", "turn_geometric", "trajectory", "trajectory_geometric")
"""What a ratio between sampler and learner is of: a token, or the product or the geometric mean over tokens."""

TOKEN_MEAN, SEQUENCE_MEAN, TURN_MEAN, CONSTANT_LENGTH = AGGREGATIONS = (
    "token_mean",
    "sequence_mean",
    "turn_mean",
    "constant_length",
)
"""Ways of averaging the losses of tokens."""

GROUP = "group"
NORMALIZE_MODES = ("batch", GROUP, "game", "role", "center_role", "none")
"""What advantages are centred and scaled within."""

MONTE_CARLO = "monte_carlo"
"""Target of the value function: the return of lambda 1."""

LOSS, REWARD = KL_PLACES = ("loss", "reward")
"""Where the KL penalty is."""

KL_ESTIMATORS = ("k1", "k2", "k3")
"""Estimates of a divergence (:func:`~rllib_lmgame.learners.objectives.policy_losses.kl_estimate`)."""
KL_GRADIENTS = ("k2", "k3")
"""Those whose gradient the penalty in the loss may have; that of ``k1`` is zero in expectation."""

INITIAL, EMA, REFRESH = REFERENCE_KINDS = ("initial", "ema", "refresh")
"""Ways of a reference model."""

_RENAMED_IN_REFERENCE = {"kind": "type"}


FIT, GRADIENT = "fit", "gradient"
"""Ways of a critic's warm-up."""
POPART, NONE = "popart", "none"
"""Normalisations of value targets."""


@dataclass(frozen=True)
class ReferenceOptions:
    """``token_ppo.reference`` as a mapping."""

    type: str = option(
        INITIAL,
        "`initial`: the weights at the start of PPO, for good. `ema`: an exponential average of the policy's weights, "
        "which begins as these. `refresh`: replaced by the policy now and then.",
        choices=REFERENCE_KINDS,
    )
    decay: float = option(
        0.99, "`ema`: after every update `reference = decay * reference + (1 - decay) * weights`.", above=0, high=1
    )
    every: int = option(100, "`refresh`: updates after which the reference is the present policy again.", low=1)


def check_reference(value: str | Mapping[str, Any], path: str) -> ReferenceOptions:
    """The reference model's options from a type alone or a mapping.

    Args:
        value: Of ``token_ppo.reference``.
        path: Its key, for errors.

    Raises:
        ConfigError: for an unknown type or key, a value out of range, or a key that the type has no use for.
    """
    if isinstance(value, str):
        return build(ReferenceOptions, {"type": value}, path)
    options = build(ReferenceOptions, with_new_names(value, _RENAMED_IN_REFERENCE, path), path)
    if options.decay == 1:
        raise ConfigError(f"{path}.decay", "1 never follows the weights; set less than 1")
    for key, owner in (("decay", EMA), ("every", REFRESH)):
        if key in value and options.type != owner:
            raise ConfigError(f"{path}.{key}", f"has no effect with type: {options.type}; it belongs to type: {owner}")
    return options


def is_type_and_numbers(value: Any) -> bool:
    """Whether ``value`` is a name, or a mapping with a name as ``type`` and numbers beside it."""
    if isinstance(value, Mapping):
        value = with_new_names(value, _RENAMED_IN_REFERENCE, "token_ppo.reference")
        return is_name(value.get("type")) and is_number({**value, "type": None})
    return is_name(value)


def is_type_and_words(value: Any) -> bool:
    """Whether ``value`` is a name, or a mapping with a name as ``type`` and numbers or names beside it."""
    if isinstance(value, Mapping):
        return is_name(value.get("type")) and all(is_number(item) or is_name(item) for item in value.values())
    return is_name(value)


@dataclass(frozen=True)
class TokenPPOOptions:
    """The ``token_ppo`` section."""

    advantage_estimator: str | dict[str, Any] = option(
        "gae",
        f"[Advantage estimator](parts.md#advantage-estimators): {ESTIMATORS.listed()}; with options of its own "
        "as a mapping: `{type: gae, length_adaptive: 0.05}`.",
        stranger=is_type_and_words,
    )
    baseline_decay: float = option(
        BASELINE_DECAY,
        "`rae`: with every batch `baseline = decay * baseline + (1 - decay) * the batch's mean return`.",
        low=0,
        high=1,
        schedulable=True,
    )
    objective: str = option("ppo", f"Objective: {OBJECTIVES.listed()}.", stranger=is_name)
    critic_target: str = option(
        MONTE_CARLO,
        "Target of the value function: `monte_carlo` (the return of lambda 1, which does not depend on what a young "
        "critic says) or `gae` (that of `lambda`).",
        choices=("gae", MONTE_CARLO),
    )
    normalize_advantages: str | None = option(
        None,
        "Give the advantages of tokens mean 0 and deviation 1 over the `batch`, or within each `group` (one level and "
        "role, the state of RAGEN and GRL), `game` or `role`; `center_role` centres per role without scaling, `none` "
        "leaves them. null: `none` with [estimators](parts.md#advantage-estimators) whose advantages have a scale "
        "of their own, else `batch`.",
        choices=NORMALIZE_MODES,
    )
    advantage_std_floor: float = option(
        0.01,
        "Advantages are divided by their deviation, or by this where it is smaller (in units of scaled rewards): "
        "where all returns are equal, what is left is the value function's error.",
        above=0,
        schedulable=True,
    )
    policy_loss: str = option(
        "clip",
        f"[Policy loss](parts.md#policy-losses): {POLICY_LOSSES.listed()}.",
        stranger=is_name,
    )
    clip_low: float | None = option(
        None,
        "Ratio clip below 1 (`dppo`: how far a probability may fall); null is what suits the policy loss, 0.2 for "
        "`clip`.",
        above=0,
        high=1,
        schedulable=True,
    )
    clip_high: float | None = option(
        None,
        "Ratio clip above 1 (`dppo`: how far a probability may rise); null is what suits the policy loss, 0.28 for "
        "`clip`.",
        above=0,
        schedulable=True,
    )
    dual_clip: float | None = option(
        None, "`clip` and `gspo`: bound on the loss of bad tokens with a large ratio.", above=1, schedulable=True
    )
    loss_aggregation: str = option(
        TOKEN_MEAN,
        "How the policy's losses of tokens are averaged over a minibatch: `token_mean` (every token counts the same), "
        "`sequence_mean` (mean over trajectories of the means over their tokens), `turn_mean` (the same of turns), "
        "`constant_length` (sum over tokens, divided by trajectories times `loss_length`). The value loss is always "
        "the mean over tokens.",
        choices=AGGREGATIONS,
    )
    loss_length: int | None = option(
        None,
        "`constant_length`: tokens of the longest trajectory, or another constant in their place.",
        low=1,
        schedulable=True,
    )
    value_clip: float | None = option(
        None, "Clip of the value function's change; null is off.", above=0, schedulable=True
    )
    entropy_target: float | None = option(
        None,
        "Entropy per token, in nats, that the bonus keeps up: its coefficient begins as `entropy_coeff`, and after "
        "every update `c = max(0, c + entropy_rate * (target - entropy))`. Null keeps `entropy_coeff`, a number or a "
        "schedule.",
        above=0,
        schedulable=True,
    )
    entropy_rate: float = option(
        0.005, "`entropy_target`: how fast the coefficient follows.", above=0, schedulable=True
    )
    importance_cap: float | None = option(
        2.0,
        "Cap of the truncated importance weight between sampler and learner; null is off. Without part in "
        "`policy_loss: dppo`.",
        above=0,
        schedulable=True,
    )
    importance_level: str = option(
        "token",
        "What that weight is of: a `token`, or all tokens of a `turn` or `trajectory`, the product of their ratios or "
        "(`_geometric`) its geometric mean.",
        choices=IMPORTANCE_LEVELS,
    )
    importance_band: list[float] | None = option(
        None,
        "`[low, high]`: tokens whose ratio of learner to sampler lies outside are left out of the policy loss (IcePop: "
        "`[0.5, 5]` with `importance_cap: 5`). Null is off.",
    )
    importance_band_level: str = option(
        "token", "What the ratio in the band is of, as `importance_level`.", choices=IMPORTANCE_LEVELS
    )
    max_logprob_gap: float | None = option(
        0.5,
        "A policy's first update, also after a resume, with `logprob_gap_mean` above this or NaN ends the run: sampler "
        "and learner then compute different models. Numerics alone differ by hundredths at most. Null goes on.",
        above=0,
    )
    staleness_limit: int | None = option(
        None,
        "Tokens sampled by weights more updates old than this are left out of the loss; null keeps all. They "
        "count in advantages, and `stale_fraction` says how many there were.",
        low=0,
        schedulable=True,
    )
    num_minibatches: int = option(
        1,
        "Optimizer steps per epoch; fewer where each learner has fewer episodes (groups, where they are compared).",
        low=1,
        high=10_000,
        schedulable=True,
    )
    max_tokens_per_microbatch: int | None = option(
        None,
        f"Tokens in one forward and backward pass. null: {MOST_TOKENS} on a GPU; on CPUs a power of two, at most as "
        "many, whose activations take up to 2 GiB in models like Qwen2 and Llama (1024 with one of 135 M parameters).",
        low=LEAST_TOKENS,
    )
    max_row_tokens: int | None = option(None, "Longest row; null takes the policy's `context_length`.", low=8)
    num_threads: int | Literal["auto"] | None = option(
        None,
        "CPU threads of each learner. `auto` divides the cores of the trial among its learners, which compute while "
        "the engines wait: see [threads](clusters.md#threads); null takes RLlib's `num_cpus_per_learner`, as does "
        "`auto` on GPUs.",
        low=1,
        high=MOST_THREADS,
    )
    head_chunk_tokens: int = option(4096, "Tokens whose logits are held at once.", low=1)
    critic_warmup_iterations: int = option(0, "Iterations in which only the value function is trained.", low=0)
    critic_warmup: str = option(
        FIT,
        "What trains it there. `fit`: the value head's last layer is set to the ridge regression of Monte-Carlo "
        "returns (discounted as `advantage_estimator` does) on its features, over the tokens of all these iterations; "
        "a tenth of the episodes is held out to choose the penalty, and nothing else changes. `gradient`: optimizer "
        "steps as later, on all of the value function.",
        choices=(FIT, GRADIENT),
    )
    critic_warmup_lr: float | None = option(
        None,
        "`critic_warmup: gradient`: learning rate of the value head in these iterations; null takes `value_lr`.",
        above=0,
        schedulable=True,
    )
    value_normalization: str = option(
        NONE,
        "`popart`: the value function is trained on returns less their running mean, divided by their running "
        "deviation, per policy and game; its last layer is rescaled so that no prediction changes. For the value loss, "
        "returns may then be of any size, and `vf_loss` and `value_clip` are in these units; advantages stay in scaled "
        "rewards, so that `reward_scale` keeps its part in the strength of a KL penalty (`reference`) where these are "
        "not divided by their deviation.",
        choices=(POPART, NONE),
    )
    value_lr: float | None = option(
        None,
        f"Learning rate of the value head; null takes `lr`, but at least {LEAST_VALUE_LR:g} (0 where `lr` is 0): at "
        "the rates of large models a head would hardly move.",
        above=0,
        schedulable=True,
    )
    value_grad_clip: float | None = option(
        None,
        "Bound on the gradient norm of the value function's own parameters (its head, and its backbone with "
        "`value_model: separate`); `grad_clip` is then that of the rest. null: one norm for all. Not with DeepSpeed's "
        "ZeRO or half precision, which know one norm only.",
        above=0,
        schedulable=True,
    )
    value_backbone_lr: float | None = option(
        None, "Learning rate of the value function's own backbone (`value_model: separate`); null takes `lr`.", above=0
    )
    weight_decay: float = option(0.0, "AdamW weight decay.", low=0)
    adam_betas: tuple[float, float] = option((0.9, 0.95), "AdamW betas.")
    lr_warmup_steps: int | None = option(
        None,
        "Optimizer steps of linear warm-up, counted from the policy's first one on; null is "
        f"{WARMUP_STEPS_AFTER_SUPERVISION} behind a warm start, else 0.",
        low=0,
    )
    reference: str | dict[str, Any] = option(
        INITIAL,
        "Reference model of the KL penalty: `initial` (the weights at the start of PPO), `ema` or `refresh` (it "
        "follows the policy), or a mapping with the keys below. The penalty's coefficient `c` is in the unit of the "
        "advantages: where these are not divided by their deviation (`normalize_advantages: center_role` or `none`), "
        "its strength in the game's own points is `alpha = c / reward_scale`, and with a fixed reference and one "
        "decision per reply the policy goes to `reference * exp(q / alpha)`, normalised, `q` in points.",
        stranger=is_type_and_numbers,
    )
    kl_in: str = option(
        LOSS,
        "Where the penalty of `use_kl_loss` is: a part of the `loss`, or taken off the `reward` of every token before "
        "advantages are estimated.",
        choices=KL_PLACES,
    )
    kl_estimator: str | None = option(
        None,
        "Estimate of KL(policy || reference): of what is reported as `mean_kl_loss`, which the adaptive coefficient "
        "follows, and of the penalty in the reward. Null is `k3` (at most 10 a token) in the loss and `k1` in the "
        "reward.",
        choices=KL_ESTIMATORS,
    )
    kl_gradient: str = option(
        "k2",
        "What the penalty in the loss adds to it: `k2` has the gradient of KL(policy || reference), `k3` that of "
        "KL(reference || policy). That of `k1` is zero in expectation.",
        choices=KL_GRADIENTS,
    )
    kl_coeff_range: float = option(
        100.0,
        "The adaptive KL coefficient stays between `kl_coeff` divided by this and `kl_coeff` times this.",
        low=1,
        schedulable=True,
    )
    kl_schedule: list[list[float]] | None = option(
        None, "KL coefficient as `[[iteration, value], ...]`, linear in between, instead of RLlib's adaptive one."
    )
    ema_decay: float | None = option(
        None, "Average the weights over iterations with this decay, for evaluation and export.", above=0, high=1
    )
    max_nan_steps: int = option(
        10, "Skipped optimizer steps (non-finite gradients) in a row before the run ends with an error.", low=1
    )

    @property
    def kl_value(self) -> str:
        """The estimate of the divergence in use."""
        return self.kl_estimator or ("k3" if self.kl_in == LOSS else "k1")

    @property
    def reference_options(self) -> ReferenceOptions:
        """How the reference model follows the policy."""
        return check_reference(self.reference, "token_ppo.reference")
