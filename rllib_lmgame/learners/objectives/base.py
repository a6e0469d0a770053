"""What an objective is, and the loop of one update of one policy, which asks it.

The loop makes a pass without gradient where the objective needs it: not where all rows fit one pass, nor where each
micro-batch of the only step may be recorded right before its loss. Then come epochs of minibatches, each one optimizer
step over micro-batches, or the fit of the critic. An objective that couples rows has its pass before every step, where
a minibatch is more than one micro-batch. Guarantees:

1. Each policy is trained on its own rows in its own minibatches, each row once per epoch.
2. The loss of a minibatch is the mean over its action tokens on all learners, however they are spread and packed; an
   objective may weigh them (``aggregation``).
3. A step with NaN or infinite gradients changes no weight anywhere and is counted; ten in a row raise without
   ``on_collapse``.
4. With ``env_token_loss_weight`` the loss has so many times the mean cross-entropy of the game's text in the minibatch,
   at temperature 1, among the whole vocabulary. A critic's warm-up leaves it out.
5. An update in which nothing has a gradient takes no step on any learner and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from rllib_lmgame.base.group import with_changes
from rllib_lmgame.learners.advantages import advantage_inputs, monte_carlo_returns
from rllib_lmgame.learners.critic import Critic
from rllib_lmgame.learners.data.batching import MinibatchSize, PackedBatch, TokenBatch, dummy_batch
from rllib_lmgame.learners.engines.torch_engine import (
    PARTS,
    POLICY,
    GuardedOptimizer,
    TorchEngine,
    learning_rates,
    set_learning_rates,
    warmup_factor,
)
from rllib_lmgame.learners.metrics import WITHOUT_GRADIENT, UpdateMeter
from rllib_lmgame.learners.options import MOST_TOKENS, WARMUP_STEPS_AFTER_SUPERVISION, TeacherOptions, TrainingOptions
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.policies.model.attention import Layout
from rllib_lmgame.policies.model.heads import num_chunks

MAX_NAN_STEPS = 10
"""Skipped optimizer steps in a row that end the run."""

_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the update of one module; ``None`` is off.

    Attributes:
        microbatch_tokens: Tokens in one forward and backward pass.
        temperature: That log-probabilities are taken at (:func:`learning_temperature`).
        rewards: All that they depend on at the run's start, as text.
        grad_clip: Bound on the global gradient norm.
        most_nan_steps: Steps in a row without finite gradients that raise.
    """

    ppo: TrainingOptions
    gamma: float
    lam: float
    vf_loss_coeff: float
    lr_warmup_steps: int = 0
    temperature: float = 1.0
    reward_scale: float = 1.0
    rewards: str = ""
    grad_clip: float | None = None
    num_epochs: int = 1
    seed: int = 0
    deepspeed: Mapping[str, Any] | None = None
    teacher: TeacherOptions | None = None
    microbatch_tokens: int = MOST_TOKENS
    most_nan_steps: float = math.inf

    @classmethod
    def of_run(cls, run: Any, values: Mapping[str, float] = MappingProxyType({})) -> LearnerSettings:
        """Those of a policy's ``RunConfig``, with ``values`` of schedules by their keys."""
        own = run.text_rollouts
        rewards = repr((own.reward_scale, own.format_penalty, run.data_selection, run.games))
        run = with_changes(run, values)
        deepspeed: Any = run.deepspeed
        ppo, default_steps = run.training, 0 if run.supervised_stage is None else WARMUP_STEPS_AFTER_SUPERVISION
        return cls(
            ppo=ppo,
            gamma=run.gamma,
            lam=run.lambda_,
            vf_loss_coeff=run.vf_loss_coeff,
            lr_warmup_steps=default_steps if ppo.lr_warmup_steps is None else ppo.lr_warmup_steps,
            temperature=learning_temperature(run.inference.temperature),
            reward_scale=run.text_rollouts.reward_scale,
            rewards=rewards,
            grad_clip=run.grad_clip,
            num_epochs=run.num_epochs,
            seed=run.seed or 0,
            deepspeed=deepspeed,
            teacher=run.teacher,
            microbatch_tokens=ppo.microbatch or MOST_TOKENS,
            most_nan_steps=math.inf if run.on_collapse else MAX_NAN_STEPS,
        )

    def critic_warms_up(self, num_updates: int) -> bool:
        """Whether the critic warms up and the policy rests in the update after this many."""
        warmup = self.ppo.critic.warmup
        return warmup is not None and num_updates < warmup.iterations

    def changed(self, **options: Any) -> LearnerSettings:
        """With other ``options`` of ``training``."""
        return replace(self, ppo=self.ppo.model_copy(update=options))

    def without_critic(self) -> LearnerSettings:
        """Without a value function there is none to warm up."""
        return self.changed(critic=self.ppo.critic.model_copy(update={"warmup": None}))

    def of_another_loss(self, **options: Any) -> LearnerSettings:
        """Without what only PPO's loss asks for, and with other ``options`` of ``training``."""
        return self.without_critic().changed(ema_decay=None, kl=None, **options)

    def minibatch_seed(self, version: int, epoch: int, rank: int) -> list[int]:
        """Entropy of the generator that orders minibatches; of counters alone, so that a resumed run repeats it."""
        return [self.seed % _SEED_STRIDE, version, epoch, rank]


def learning_temperature(temperature: float) -> float:
    """The temperature that log-probabilities are taken at; greedy sampling, whose temperature is 0, counts as 1."""
    return float(temperature) if temperature > 0 else 1.0


Loss = tuple[torch.Tensor, dict[str, Any]]
"""Summed over the action tokens of a micro-batch, to be divided by those of the minibatch; and sums for the metrics."""


@dataclass(frozen=True, kw_only=True)
class ModuleUpdate:
    """One update of one module, as its objective sees it.

    Attributes:
        batch: The rows; none on a learner that takes part for the others' sake.
        meter: Collects the figures.
        ranks: All learners of the update.
        reference_logprobs: Log-probabilities of a micro-batch's action tokens under the frozen reference model, float32
            ``[A]``, given its inputs. All learners must ask the first time.
        entropy_coefficient, kl_coefficient: At this iteration; the latter is 0 without ``training.kl``.
        num_updates: Updates of the module before this one, those of a supervised stage left out.
        minibatch: What the present minibatch has on all learners; ``None`` before the first.
        critic: The fit of the value function; ``None`` without one.
        streams: Each micro-batch is recorded behind :meth:`Objective.prepare`, by the pass of its loss.
        teacher_logprobs: The same under the teacher of ``settings.teacher``, if learners hold it.
        ask_teacher: The same of a whole batch, float32 ``[A]``, if the teacher is behind an endpoint.
        reference_known: What the reference has said, for objectives that keep it, as long as it is the same.
    """

    module_id: str
    settings: LearnerSettings
    batch: TokenBatch
    meter: UpdateMeter
    ranks: ProcessGroup
    reference_logprobs: Callable[[Mapping[str, Any]], torch.Tensor]
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    num_updates: int = 0
    critic: Critic | None = None
    minibatch: MinibatchSize | None = None
    streams: bool = False
    teacher_logprobs: Callable[[Mapping[str, Any]], torch.Tensor] | None = None
    ask_teacher: Callable[[TokenBatch], np.ndarray] | None = None
    reference_known: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def critic_warms_up(self) -> bool:
        """Whether the critic warms up and the policy rests."""
        return self.settings.critic_warms_up(self.num_updates)

    @property
    def fits_critic(self) -> bool:
        """Whether that is a fit of the value head's last layer: nothing else changes."""
        warmup = self.settings.ppo.critic.warmup
        return warmup is not None and warmup.type == "fit" and self.critic_warms_up

    def column(self, pack: PackedBatch, name: str, like: torch.Tensor) -> torch.Tensor:
        """A flat array at the action tokens of ``pack``, on the device of ``like``."""
        return torch.from_numpy(getattr(self.batch, name)[pack.token_slot]).to(like.device, non_blocking=True)


class Objective:
    """What one update minimises; only :meth:`loss` must be overridden.

    Every policy has PPO's of its own; one that an algorithm gives to an update serves all its policies.
    """

    needs_old_policy: bool = True
    """:meth:`record` sees every micro-batch before the first step, then :meth:`prepare` is called."""

    records_each_step: bool = False
    """They see the micro-batches of each minibatch before its step instead, under the weights as they then are."""

    lr: float | None = None
    """Learning rate of all parameters in an update that the objective is given to; ``None``: the configured one."""

    learns_observations: bool = False
    """``training.env_token_loss_weight`` of the adapted settings adds to its loss."""

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        """The settings of an update with this objective, from the configured ones."""
        return settings

    def needs_groups(self, settings: LearnerSettings) -> bool:
        """Whether the trajectories of a group must be in one minibatch of one learner."""
        return False

    def needs_critic(self, settings: LearnerSettings) -> bool:
        """Whether the module has a value function."""
        return True

    def needs_reference(self, update: ModuleUpdate) -> bool:
        """Whether the reference's log-probabilities of all rows are to be in the batch before the first step. All say
        the same.
        """
        return False

    def asked_reference(self, update: ModuleUpdate) -> None:
        """The reference's log-probabilities are in the batch."""

    def record(
        self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: Mapping[str, Any]
    ) -> None:
        """Keep what is needed of a forward pass of the policy before the update."""

    def prepare(self, update: ModuleUpdate) -> None:
        """Every micro-batch is recorded. All learners take part."""

    def prepares_first(self, settings: LearnerSettings) -> bool:
        """Whether :meth:`prepare` reads nothing of what :meth:`record` keeps.

        Then an update of one step, which may be of many micro-batches, ``streams``: it has no pass without gradient.
        """
        return False

    def streamed(self, update: ModuleUpdate) -> None:
        """Every micro-batch of an update that ``streams`` is recorded. All learners take part."""

    def has_gradient(self, update: ModuleUpdate) -> bool:
        """Whether its loss has one, asked behind :meth:`prepare`; else the update is left out. All say the same."""
        return True

    def critic_targets(self, update: ModuleUpdate) -> np.ndarray:
        """What a critic's warm-up fits, float32 ``[A]``, behind :meth:`prepare`: discounted returns. All take part."""
        settings = update.settings
        return monte_carlo_returns(
            advantage_inputs(update.batch, gamma=settings.gamma, lam=settings.lam, ranks=update.ranks)
        )

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        """Arguments of the forward pass with gradient."""
        return {"temperature": update.settings.temperature, "with_values": self.needs_critic(update.settings)}

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """Loss of one micro-batch from the outputs of its forward pass."""
        raise NotImplementedError

    def trained_parts(self, update: ModuleUpdate) -> Collection[str]:
        """Those of :data:`~rllib_lmgame.learners.engines.torch_engine.PARTS` that a step changes."""
        return PARTS

    def stepped(self, module: Any) -> None:
        """An optimizer step has changed the weights of ``module``, on all learners."""

    def get_state(self) -> Any:
        """What the checkpoint keeps of it: JSON, equal on all learners; ``None`` for nothing."""
        return None

    def set_state(self, state: Any) -> None:
        """Undo :meth:`get_state`."""


_CACHE_TOKENS = 4096
"""Tokens of one pass on a CPU where the whole minibatch fits into memory: more at once run out of the caches."""

_REPEATED_TOKEN = 0.25
"""Of a token's activations, what keys and values of all heads take at most."""


@dataclass
class StepCounts:
    """Optimizer steps of one policy, for the checkpoint; ``applied`` are those that changed more than the critic."""

    applied: int = 0
    nan_in_a_row: int = 0


@dataclass(kw_only=True, eq=False)
class UpdateLoop:
    """One update of one policy. All learners run it, those without rows too.

    ``lr`` is the schedule's rate; ``steps`` are the policy's, counted on.
    """

    update: ModuleUpdate
    objective: Objective
    engine: TorchEngine
    optimizer: GuardedOptimizer
    lr: float
    steps: StepCounts
    device: torch.device

    def run(self, version: int) -> None:
        """Change the weights, which are of this version.

        Raises: FloatingPointError: The gradients of ``most_nan_steps`` in a row were not finite.
        """
        update, settings = self.update, self.update.settings
        one_pass = self._fits_one_pass()
        self.update.meter.before[WITHOUT_GRADIENT] = 0.0
        if self.objective.needs_reference(update):
            self._ask_reference()
        if self.objective.needs_old_policy and not one_pass and not self.objective.records_each_step:
            streams = self._records_in_step and not update.fits_critic and self.objective.prepares_first(settings)
            update = self.update = replace(update, streams=streams)
            if not streams:
                self._record_old_policy()
            self.objective.prepare(update)
            if not self._has_gradient():
                if streams:
                    self._record_old_policy()
                    self.objective.streamed(update)
                return
        if update.critic is not None and update.fits_critic:
            self._fit_critic(update.critic)
            return
        for epoch in range(settings.num_epochs):
            minibatches = self.update.batch.minibatches(
                settings.ppo.num_minibatches,
                np.random.default_rng(settings.minibatch_seed(version, epoch, self.update.ranks.rank)),
                self._one_pass_tokens if one_pass else self._pack_tokens,
                whole_groups=self.objective.needs_groups(settings),
                batched=self._batched,
                repeat_cost=self._repeat_cost,
            )
            for number, minibatch in enumerate(minibatches):
                self.update.meter.first_minibatch = epoch == number == 0
                self._step(minibatch, one_pass)

    @torch.no_grad()
    def measured_loss(self) -> float:
        """The mean loss of all rows under the weights as they are; NaN without any. All learners take part."""
        packs = self._all_rows(self._pack_tokens)
        size = self._size_of(packs)
        if size.tokens == 0:
            return math.nan
        update = replace(self.update, minibatch=size)
        flags = self.objective.forward_flags(update)
        for pack, inputs in self._passes(packs):
            update.meter.add(self.objective.loss(update, pack, self.engine.forward(inputs | flags))[1])
        return update.meter.means(update.ranks)["policy_loss"]

    def _has_gradient(self) -> bool:
        """Whether there is anything to learn; it is noted where there is not."""
        update = self.update
        observes = self._env_token_loss_weight and update.ranks.max(update.batch.num_observed) > 0
        if observes or self.objective.has_gradient(update):
            return True
        self.update.meter.before |= {WITHOUT_GRADIENT: 1.0, "policy_loss": 0.0, "total_loss": 0.0}
        return False

    @property
    def _env_token_loss_weight(self) -> float:
        """What the cross-entropy of the game's text counts in this update."""
        rests = self.update.critic_warms_up or not self.objective.learns_observations
        return 0.0 if rests else self.update.settings.ppo.env_token_loss_weight

    @property
    def _records_in_step(self) -> bool:
        """The passes of the only step may record the old policy, which has no dropout."""
        settings, adapters = self.update.settings, self.engine.module.adapters
        drops = adapters is not None and adapters.config.lora_dropout
        return not drops and settings.num_epochs == settings.ppo.num_minibatches == 1

    def _fits_one_pass(self) -> bool:
        """One epoch of one minibatch that fits into memory: the pass with gradient also records the old policy."""
        if not self.objective.needs_old_policy or self.update.fits_critic or not self._records_in_step:
            return False
        packs = self._all_rows(self._one_pass_tokens)
        repeated = (self._repeat_cost or 0.0) * sum(pack.repeated_tokens for pack in packs)
        return float(self.update.ranks.max(self._computed(packs) + repeated)) <= self.update.settings.microbatch_tokens

    def _computed(self, packs: Sequence[PackedBatch]) -> int:
        return sum(pack.batched_tokens if self._batched else pack.num_tokens for pack in packs)

    def _all_rows(self, limit: int) -> list[PackedBatch]:
        return self.update.batch.microbatches(limit, batched=self._batched, repeat_cost=self._repeat_cost)

    @property
    def _pack_tokens(self) -> int:
        """Tokens of a pack; with fewer than any row has, each goes alone."""
        return 1 if self.engine.module.layout is Layout.ALONE else self.update.settings.microbatch_tokens

    @property
    def _batched(self) -> bool:
        return self.engine.module.layout is Layout.BATCHED

    @property
    def _one_pass_tokens(self) -> int:
        """Where all packs are in memory at once."""
        few = self.engine.keeps_graphs and self.device.type == "cpu"
        return min(self._pack_tokens, _CACHE_TOKENS) if few else self._pack_tokens

    @property
    def _repeat_cost(self) -> float | None:
        """What a shared token counts where it is repeated; ``None``: no prompt is shared."""
        module = self.engine.module
        if not (module.shares and self.update.settings.ppo.share_prompts):
            return None
        return _REPEATED_TOKEN if module.repeats else 0.0

    @torch.no_grad()
    def _ask_reference(self) -> None:
        for pack, inputs in self._passes(self._all_rows(self._pack_tokens)):
            said = self.update.reference_logprobs(inputs)
            self.update.batch.put(pack, ref_logprobs=said.float().cpu().numpy())
        self.objective.asked_reference(self.update)

    @torch.no_grad()
    def _record_old_policy(self) -> None:
        flags = {"temperature": self.update.settings.temperature, "with_entropy": False}
        for pack, inputs in self._passes(self._all_rows(self._pack_tokens)):
            self.objective.record(self.update, pack, self.engine.forward(inputs | flags), inputs)

    @torch.no_grad()
    def _fit_critic(self, critic: Critic) -> None:
        """In place of optimizer steps: a pass that sums up the features of the value head, and its fit."""
        settings, objective = self.update.settings, self.objective
        inputs = advantage_inputs(self.update.batch, gamma=settings.gamma, lam=settings.lam, ranks=self.update.ranks)
        critic.begin_fit(inputs, objective.critic_targets(self.update), self.device)
        packs = self._all_rows(self._pack_tokens)
        update = replace(self.update, minibatch=self._size_of(packs))  # Of all rows: its loss is a figure alone.
        flags = objective.forward_flags(update) | {"with_value_features": True}
        for pack, tensors in self._passes(packs):
            out = self.engine.forward(tensors | flags)
            self.update.meter.add(objective.loss(update, pack, out)[1])
            critic.add(pack, out["value_features"])
        last = not settings.critic_warms_up(update.num_updates + 1)
        self.update.meter.before |= critic.finish_fit(last=last)

    def _step(self, minibatch: list[PackedBatch], one_pass: bool) -> None:
        """One optimizer step over the micro-batches of ``minibatch``, on all learners."""
        engine, objective = self.engine, self.objective
        size = self._size_of(minibatch)
        if size.tokens == 0:
            return
        update = replace(self.update, minibatch=size)
        flags = objective.forward_flags(update)
        observes = self._env_token_loss_weight > 0 and size.observed > 0
        if observes:
            flags = {**flags, "with_observed": True}
        passes = self._passes(minibatch)
        outputs: list[dict[str, torch.Tensor]] = []
        if objective.records_each_step and not one_pass:
            one_pass = int(update.ranks.max(len(passes))) == 1
            if not one_pass:
                with torch.no_grad():
                    for pack, inputs in [] if objective.prepares_first(update.settings) else passes:
                        objective.record(update, pack, engine.forward(inputs | flags), inputs)
                objective.prepare(update)
        if one_pass:
            for pack, inputs in passes:
                outputs.append(engine.forward(inputs | flags))
                objective.record(update, pack, outputs[-1], inputs)
            objective.prepare(update)
            if not self._has_gradient() and engine.keeps_graphs:
                return
        for pack, inputs in passes:
            out = outputs.pop(0) if one_pass else engine.forward(inputs | flags)
            if update.streams:
                objective.record(update, pack, out, inputs)
            loss, sums = objective.loss(update, pack, out)
            self.update.meter.add(sums)
            if observes:
                said = -out["observed_logprobs"].sum()
                self.update.meter.add({"observation_loss": said, "observation_tokens": float(len(pack.observed_ids))})
                loss = loss + self._env_token_loss_weight * size.tokens / max(1.0, size.observed) * said
            engine.backward(loss * (engine.loss_factor / size.tokens))
        if update.streams:
            objective.streamed(update)
        if self.update.meter.before[WITHOUT_GRADIENT]:
            return  # What was added to the gradients of the next step is 0.
        trained = objective.trained_parts(update)
        # Its rate is not warmed up: what is to be held back are the policy's first steps.
        critic_alone = POLICY not in trained
        factor = 1.0 if critic_alone else warmup_factor(self.steps.applied, self.update.settings.lr_warmup_steps)
        rates = learning_rates(self.update.settings.ppo, self.lr, factor)
        set_learning_rates(self.optimizer, {part: rates[part] if part in trained else 0.0 for part in PARTS})
        result = engine.step()
        if not result.skipped:
            objective.stepped(engine.module)
        self._count_step(result.skipped, critic_alone)
        self.update.meter.add(
            {"nan_steps": float(result.skipped), "steps": 1.0, "grad_norm": 0.0 if result.skipped else result.grad_norm}
        )

    def _size_of(self, minibatch: Sequence[PackedBatch]) -> MinibatchSize:
        return MinibatchSize(*self.update.ranks.sum(self.update.batch.size_of(minibatch)).tolist())

    def _count_step(self, skipped: bool, critic_alone: bool) -> None:
        self.steps.nan_in_a_row = self.steps.nan_in_a_row + 1 if skipped else 0
        if not skipped:
            self.steps.applied += not critic_alone
        elif self.steps.nan_in_a_row >= self.update.settings.most_nan_steps:
            what = f"gradients of {self.steps.nan_in_a_row} optimizer steps in a row were not finite"
            raise FloatingPointError(f"{self.update.module_id}: {what}; lower `lr`, or set `grad_clip`")

    def _passes(self, packs: Sequence[PackedBatch]) -> list[tuple[PackedBatch, dict[str, Any]]]:
        """The micro-batches with their inputs; under ``lockstep`` as many passes and calls of the head everywhere."""
        engine, packs = self.engine, list(packs)
        row_tokens = sum(pack.num_tokens for pack in packs)
        given_tokens = sum(pack.given_tokens for pack in packs)
        count = int(self.update.ranks.max(len(packs))) if engine.lockstep else max(1, len(packs))
        packs += [dummy_batch() for _ in range(count - len(packs))]
        most = self.update.settings.ppo.head_chunk_tokens
        chunks = np.array([[num_chunks(n, most) for n in (pack.num_actions, len(pack.observed_ids))] for pack in packs])
        if engine.lockstep:
            chunks = self.update.ranks.max(chunks)
        counts = {"computed_tokens": self._computed(packs), "row_tokens": row_tokens, "given_tokens": given_tokens}
        self.update.meter.add({name: float(count) for name, count in counts.items()})
        return [
            (pack, pack.to_torch(self.device) | {"head_chunks": int(own), "observed_chunks": int(observed)})
            for pack, (own, observed) in zip(packs, chunks, strict=True)
        ]
