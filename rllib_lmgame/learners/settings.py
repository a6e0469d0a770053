"""What a learner reads from an algorithm configuration, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rllib_lmgame.base.group import with_changes
from rllib_lmgame.base.threads import AUTO
from rllib_lmgame.learners.microbatch import MOST_TOKENS, default_tokens, kept_per_token, layer_of, number_of
from rllib_lmgame.learners.options import WARMUP_STEPS_AFTER_SUPERVISION, FitWarmup, TokenPPOOptions
from rllib_lmgame.learners.teacher_options import TeacherOptions

_SEED_STRIDE = 1_000_003
_FOLLOWING = {
    "gamma": "gamma",
    "lambda": "lam",
    "vf_loss_coeff": "vf_loss_coeff",
    "num_epochs": "num_epochs",
    "text_rollouts.reward_scale": "reward_scale",
}
"""Keys of schedules whose values have a field here."""


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the update of one module.

    Attributes:
        ppo: The ``token_ppo`` section.
        microbatch_tokens: Tokens in one forward and backward pass.
        lr_warmup_steps: Optimizer steps of linear warm-up.
        temperature: That log-probabilities are taken at (:func:`learning_temperature`).
        reward_scales: Of games that have one of their own, by name.
        grad_clip: Bound on the global gradient norm; ``None`` is off.
        seed: Of the order of minibatches.
        deepspeed: DeepSpeed's configuration, or ``None`` without DeepSpeed.
        teacher: The ``teacher`` section; ``None`` without one.
    """

    ppo: TokenPPOOptions
    gamma: float
    lam: float
    vf_loss_coeff: float
    lr_warmup_steps: int = 0
    temperature: float = 1.0
    reward_scale: float = 1.0
    reward_scales: Mapping[str, float] = field(default_factory=dict)
    grad_clip: float | None = None
    num_epochs: int = 1
    seed: int = 0
    deepspeed: Mapping[str, Any] | None = None
    teacher: TeacherOptions | None = None
    microbatch_tokens: int = MOST_TOKENS

    @classmethod
    def from_config(cls, config: Any) -> LearnerSettings:
        ppo, inference = config.run.token_ppo, config.run.inference
        default_steps = 0 if config.run.supervised_stage is None else WARMUP_STEPS_AFTER_SUPERVISION
        return cls(
            ppo=ppo,
            gamma=float(config.gamma),
            lam=float(config.lambda_),
            vf_loss_coeff=float(config.vf_loss_coeff),
            lr_warmup_steps=default_steps if ppo.lr_warmup_steps is None else ppo.lr_warmup_steps,
            temperature=learning_temperature(inference.temperature),
            reward_scale=config.run.text_rollouts.reward_scale,
            grad_clip=None if config.grad_clip is None else float(config.grad_clip),
            num_epochs=int(config.num_epochs),
            seed=int(config.seed or 0),
            deepspeed=None if config.run.deepspeed is None else dict(config.run.deepspeed),
            teacher=config.run.teacher,
            microbatch_tokens=ppo.microbatch or MOST_TOKENS,
        )

    def with_values(self, values: Mapping[str, float]) -> LearnerSettings:
        """The settings with values of schedules, by their keys; other keys than a learner's are passed over."""
        changes: dict[str, Any] = {field: values[key] for key, field in _FOLLOWING.items() if key in values}
        ppo = {key.removeprefix("token_ppo."): each for key, each in values.items() if key.startswith("token_ppo.")}
        if "teacher.coefficient" in values and self.teacher is not None:
            changes["teacher"] = self.teacher.model_copy(update={"coefficient": values["teacher.coefficient"]})
        if "inference.temperature" in values:
            changes["temperature"] = learning_temperature(values["inference.temperature"])
        return replace(self, ppo=with_changes(self.ppo, ppo) if ppo else self.ppo, **changes)

    def critic_warms_up(self, num_updates: int) -> bool:
        """Whether the critic warms up and the policy rests in the update after this many."""
        warmup = self.ppo.critic.warmup
        return warmup is not None and num_updates < warmup.iterations

    @property
    def fits_critic(self) -> bool:
        return isinstance(self.ppo.critic.warmup, FitWarmup)

    def found_tokens(self, module: Any, on_gpu: bool, room: float | None) -> int:
        """Tokens of a micro-batch with ``auto``, by what the activations of a policy's module take.

        ``room`` is the bytes for them; ``None`` if it is not known.
        """
        model, options = module.language_model, module.options
        layers = number_of(model.config.get_text_config(), "num_hidden_layers")
        context = self.ppo.max_row_tokens or options.context_length
        kept = kept_per_token(layers, layer_of(model), model.dtype.itemsize, context, options.gradient_checkpointing)
        backbones = 1 if module.value_backbone is None else 2
        return default_tokens(kept * backbones, on_gpu, room)

    def without_critic(self) -> LearnerSettings:
        """Without a value function there is none to warm up."""
        return replace(self, ppo=with_changes(self.ppo, {"critic.warmup": None}))

    def of_another_loss(self, **options: Any) -> LearnerSettings:
        """Without what only PPO's loss asks for, and with other ``options`` of ``token_ppo``."""
        off = dict.fromkeys(("critic.warmup", "ema_decay", "kl", "entropy", "staleness_limit"))
        return replace(self, ppo=with_changes(self.ppo, {**off, **options}))

    def minibatch_seed(self, version: int, epoch: int, rank: int) -> list[int]:
        """Entropy of the generator that orders minibatches; of counters alone, so that a resumed run repeats it."""
        return [self.seed % _SEED_STRIDE, version, epoch, rank]


def learning_temperature(temperature: float) -> float:
    """The temperature that log-probabilities are taken at; greedy sampling, whose temperature is 0, counts as 1."""
    return float(temperature) if temperature > 0 else 1.0


def learner_threads(config: Any) -> int | None:
    """CPU threads of each learner; ``None`` leaves them as they are.

    ``config.learner_threads`` is what ``auto`` comes to, once an algorithm has started.
    """
    asked, reserved = config.run.token_ppo.num_threads, config.num_cpus_per_learner
    if isinstance(asked, int):
        return asked
    found = getattr(config, "learner_threads", None) if asked == AUTO else None
    if found is None and isinstance(reserved, int | float) and not isinstance(reserved, bool) and reserved >= 1:
        return int(reserved)
    return found
