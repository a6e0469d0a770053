"""The learners: token-level PPO, and supervised learning on the same rows.

The loop of an update stands in :meth:`LMGameLearner._update_module`: rows, a pass without gradient for what the policy
was before the update, advantages, then epochs of minibatches, each one optimizer step over micro-batches.

Guarantees:
 1. Each policy is trained on its own rows in its own minibatches, each row once per epoch; a policy is trained no more often
    because another has more rows.
 2. The loss of a minibatch is the mean over the action tokens of that minibatch on all learners, however they are spread.
 3. A step with NaN or infinite gradients changes no weight on any learner and is counted; ``max_nan_steps`` in a row raise.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from rllib_lmgame.learners.advantages import monte_carlo_returns, normalize, resolve_estimator
from rllib_lmgame.learners.batching import PackedBatch, TokenBatch, dummy_batch
from rllib_lmgame.learners.deepspeed_engine import DeepSpeedEngine, deepspeed_config, optimizer_is_guarded, wants_activation_checkpointing
from rllib_lmgame.learners.ema import WeightAverage
from rllib_lmgame.learners.learner_state import LearnerStateMixin
from rllib_lmgame.learners.losses import kl_k3, policy_loss, truncated_importance_weights, value_loss
from rllib_lmgame.learners.memory import keep_freed_memory
from rllib_lmgame.learners.metrics import RunningMoments, UpdateMeter, explained_variance
from rllib_lmgame.learners.optim import make_optimizer, set_learning_rate, warmup_factor
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.learners.reference import frozen_copy
from rllib_lmgame.learners.rows import Row, build_rows, context_cuts
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.learners.sharding import played_parts
from rllib_lmgame.learners.torch_engine import TorchEngine, UpdateEngine
from rllib_lmgame.policies.lm_head import num_chunks
from rllib_lmgame.policies.rl_module import LanguageModelRLModule
from rllib_lmgame.rollouts.trajectory import Trajectory, trajectory_of

_CACHE_TOKENS = 4096
"""Tokens of one pass through the layers on a CPU where the whole minibatch fits into memory; more tokens at once run out of the caches."""

Loss = tuple[torch.Tensor, dict[str, Any]]
"""Sum of the loss over the action tokens of a micro-batch, and sums for the metrics."""


class LMGameLearner(LearnerStateMixin, PPOTorchLearner):
    """RLlib's PPO learner over packed rows of tokens.

    RLlib keeps the hooks before and after an update, the adaptive KL coefficient, the schedules of learning rate and entropy
    coefficient, the optimizer registry and the metrics. All learners log the figures of the whole update.
    """

    def build(self) -> None:
        """Set up modules, optimizers and engines."""
        self._settings: dict[str, LearnerSettings] = {}
        self._engines: dict[str, UpdateEngine] = {}
        self._references: dict[str, LanguageModelRLModule] = {}
        self._averages: dict[str, WeightAverage] = {}
        self._updates: dict[str, int] = {}
        self._optimizer_steps: dict[str, int] = {}
        self._nan_steps_in_a_row: dict[str, int] = {}
        self._lifetime_timesteps = 0
        threads = self.config.num_cpus_per_learner
        if isinstance(threads, int | float) and not isinstance(threads, bool) and threads >= 1:
            torch.set_num_threads(int(threads))
        super().build()
        if self._device.type == "cpu":
            keep_freed_memory()

    # Set-up, called by RLlib's build().

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register one AdamW; players without weights get none."""
        module = self.module[module_id]
        if not isinstance(module, LanguageModelRLModule):
            return
        settings = self.settings(module_id)
        if wants_activation_checkpointing(settings.deepspeed):
            module.language_model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = make_optimizer(module, settings.ppo, max_grad_norm=settings.grad_clip, lr=0.0, guarded=optimizer_is_guarded(settings.deepspeed))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr)

    def _make_modules_ddp_if_necessary(self) -> None:
        """Build one engine per trained module instead of RLlib's DDP wrappers."""
        self.ranks = Ranks.current(self.config.num_learners, self._device)
        for module_id in sorted(self.module.keys()):
            module = self.module[module_id]
            if not isinstance(module, LanguageModelRLModule) or not self.should_module_be_updated(module_id):
                continue
            settings, optimizer = self.settings(module_id), self.get_optimizer(module_id)
            self.ranks.copy_from_first(module.parameters())  # A fresh value head is random.
            if settings.deepspeed is None:
                self._engines[module_id] = TorchEngine(module, optimizer, self.ranks)
            else:
                config = deepspeed_config(settings.deepspeed, settings.grad_clip)
                self._engines[module_id] = DeepSpeedEngine(module, optimizer, self.ranks, config)
                module.sharded = True
            self._updates[module_id] = self._optimizer_steps[module_id] = self._nan_steps_in_a_row[module_id] = 0

    def settings(self, module_id: str) -> LearnerSettings:
        """Settings of one module, with its overrides."""
        if module_id not in self._settings:
            self._settings[module_id] = LearnerSettings.from_config(self.config.get_config_for_module(module_id))
        return self._settings[module_id]

    # The update.

    def update(self, training_data: Any = None, *, episodes: Any = None, timesteps: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Train every policy on its trajectories in ``training_data``.

        Args:
            training_data: :class:`~rllib_lmgame.learners.sharding.WholeEpisodes`, or RLlib's ``TrainingData`` with episodes.
            episodes: Instead of ``training_data``: a list of ``MultiAgentEpisode``.
            timesteps: RLlib's counters, for schedules.
            kwargs: RLlib's; epochs and minibatches come from the configuration.

        Returns:
            RLlib's metrics, by module.
        """
        self._check_is_built()
        timesteps = dict(timesteps or {})
        self._lifetime_timesteps = int(timesteps.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0))
        self.before_gradient_based_update(timesteps=timesteps)
        if training_data is not None:
            training_data.validate()
            training_data.solve_refs()
            episodes = training_data.episodes
        trajectories = self._trajectories(episodes)
        for module_id in self._engines:
            if self.should_module_be_updated(module_id):
                self._update_module(module_id, trajectories.get(module_id, []))
        self._weights_seq_no += 1
        for module_id in self._engines:
            self.module[module_id].version = self._weights_seq_no
        self.after_gradient_based_update(timesteps=timesteps)
        return self.metrics.reduce()

    def build_rows(self, module_id: str, trajectories: Sequence[Trajectory]) -> list[Row]:
        """The rows a policy is trained on; override to change what becomes of a trajectory."""
        settings = self.settings(module_id)
        limit = settings.ppo.max_row_tokens or self.module[module_id].options.context_length
        return build_rows(trajectories, max_row_tokens=limit, reward_scale=settings.reward_scale)

    def _trajectories(self, episodes: Sequence[Any]) -> dict[str, list[Trajectory]]:
        by_module: dict[str, list[Trajectory]] = {}
        for episode in episodes:
            for part in played_parts(episode, self._engines.keys()):
                by_module.setdefault(str(part.module_id), []).append(trajectory_of(part))
        return by_module

    def _update_module(self, module_id: str, trajectories: Sequence[Trajectory]) -> None:
        started = time.perf_counter()
        settings, meter = self.settings(module_id), UpdateMeter()
        rows = self.build_rows(module_id, trajectories)
        batch = TokenBatch.from_rows(rows) if rows else None
        action_tokens = int(self.ranks.sum(batch.num_actions if batch else 0))
        if action_tokens == 0:
            return
        one_pass = self._fits_one_pass(settings, batch)
        if not one_pass:
            self._evaluate_before(module_id, batch, meter)
            self._set_advantages(module_id, batch, meter)
        for epoch in range(settings.num_epochs):
            rng = np.random.default_rng(settings.minibatch_seed(self._weights_seq_no, epoch, self.ranks.rank))
            for number, minibatch in enumerate(self._minibatches(module_id, batch, rng, one_pass)):
                meter.first_minibatch = epoch == number == 0
                self._step(module_id, batch, minibatch, meter, one_pass)
        self._updates[module_id] += 1
        self._update_average(module_id)
        self._log_update(module_id, rows, batch, meter, action_tokens, time.perf_counter() - started)

    def _fits_one_pass(self, settings: LearnerSettings, batch: TokenBatch | None) -> bool:
        """One epoch of one minibatch that fits into memory as a whole: the pass with gradient also says what the policy was before the update."""
        tokens = int(self.ranks.max(batch.num_tokens if batch else 0))
        return settings.num_epochs == 1 and settings.ppo.num_minibatches == 1 and tokens <= settings.ppo.max_tokens_per_microbatch

    def _minibatches(self, module_id: str, batch: TokenBatch | None, rng: np.random.Generator, one_pass: bool) -> list[list[PackedBatch]]:
        ppo = self.settings(module_id).ppo
        if batch is None:
            return [[] for _ in range(ppo.num_minibatches)]
        limit = ppo.max_tokens_per_microbatch
        if one_pass and self._engines[module_id].keeps_graphs and self._device.type == "cpu":
            limit = min(limit, _CACHE_TOKENS)
        return batch.minibatches(ppo.num_minibatches, rng, limit)

    def _step(self, module_id: str, batch: TokenBatch | None, minibatch: list[PackedBatch], meter: UpdateMeter, one_pass: bool) -> None:
        """One optimizer step over the micro-batches of ``minibatch``, on all learners."""
        engine, settings = self._engines[module_id], self.settings(module_id)
        tokens = float(self.ranks.sum(sum(pack.num_actions for pack in minibatch)))
        if tokens == 0:
            return
        flags = self._forward_flags(module_id)
        passes = self._aligned(module_id, minibatch, meter)
        outputs: list[dict[str, torch.Tensor]] = []
        if one_pass:
            for pack, inputs in passes:
                outputs.append(engine.forward(inputs | flags))
                self._record_before(module_id, batch, pack, outputs[-1], inputs)
            self._set_advantages(module_id, batch, meter)
        for pack, inputs in passes:
            out = outputs.pop(0) if one_pass else engine.forward(inputs | flags)
            loss, sums = self._loss(module_id, batch, pack, out, meter)
            meter.add(sums)
            engine.backward(loss * (engine.loss_factor / tokens))
        optimizer = self.get_optimizer(module_id)
        rate = float(self._optimizer_lr_schedules[optimizer].get_current_value())
        set_learning_rate(optimizer, rate, warmup_factor(self._optimizer_steps[module_id], settings.ppo.lr_warmup_steps))
        result = engine.step()
        self._count_step(module_id, result.skipped)
        meter.add({"nan_steps": float(result.skipped), "steps": 1.0, "grad_norm": 0.0 if result.skipped else result.grad_norm})

    def _count_step(self, module_id: str, skipped: bool) -> None:
        limit = self.settings(module_id).ppo.max_nan_steps
        self._nan_steps_in_a_row[module_id] = self._nan_steps_in_a_row[module_id] + 1 if skipped else 0
        if not skipped:
            self._optimizer_steps[module_id] += 1
        elif self._nan_steps_in_a_row[module_id] >= limit:
            raise FloatingPointError(
                f"{module_id}: the gradients of {limit} optimizer steps in a row were not finite; "
                "lower `lr`, set `grad_clip`, or raise `token_ppo.max_nan_steps`"
            )

    def _aligned(self, module_id: str, packs: Sequence[PackedBatch], meter: UpdateMeter) -> list[tuple[PackedBatch, dict[str, Any]]]:
        """The micro-batches with their inputs, the same number of passes (and of calls of the head) on every learner where that is needed."""
        settings, engine = self.settings(module_id), self._engines[module_id]
        packs = list(packs)
        count = int(self.ranks.max(len(packs))) if engine.lockstep else max(1, len(packs))
        packs += [dummy_batch() for _ in range(count - len(packs))]
        chunks = np.array([num_chunks(pack.num_actions, settings.ppo.head_chunk_tokens) for pack in packs])
        if engine.lockstep:
            chunks = self.ranks.max(chunks)
        meter.add(
            {"computed_tokens": float(sum(pack.num_tokens for pack in packs)), "row_tokens": float(sum(p.num_tokens for p in packs if p.num_actions))}
        )
        return [(pack, pack.to_torch(self._device) | {"head_chunks": int(n)}) for pack, n in zip(packs, chunks, strict=True)]

    def _warming_up(self, module_id: str) -> bool:
        return self._updates[module_id] < self.settings(module_id).ppo.critic_warmup_iterations

    def _forward_flags(self, module_id: str) -> dict[str, Any]:
        """Arguments of the forward pass with gradient."""
        return {
            "temperature": self.settings(module_id).temperature,
            "entropy_gradient": self._entropy_coefficient(module_id) != 0.0,
            "detach_backbone": self._warming_up(module_id),
        }

    def _entropy_coefficient(self, module_id: str) -> float:
        return float(self.entropy_coeff_schedulers_per_module[module_id].get_current_value())

    # What the policy was before the update.

    @torch.no_grad()
    def _evaluate_before(self, module_id: str, batch: TokenBatch | None, meter: UpdateMeter) -> None:
        """Fill ``old_logprobs``, ``values`` and, with a KL penalty, ``ref_logprobs``."""
        flags = {"temperature": self.settings(module_id).temperature, "with_entropy": False}
        packs = batch.microbatches(self.settings(module_id).ppo.max_tokens_per_microbatch) if batch else []
        for pack, inputs in self._aligned(module_id, packs, meter):
            self._record_before(module_id, batch, pack, self._engines[module_id].forward(inputs | flags), inputs)

    @torch.no_grad()
    def _record_before(
        self, module_id: str, batch: TokenBatch | None, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: dict[str, Any]
    ) -> None:
        settings = self.settings(module_id)
        ref = None
        if settings.use_kl_loss:
            flags = {"temperature": settings.temperature, "with_entropy": False, "with_values": False}
            ref = self._reference(module_id).forward_train(inputs | flags)["logprobs"]
        if batch is None or pack.num_actions + len(pack.bootstrap_slot) == 0:
            return
        columns = {"old_logprobs": out["logprobs"], "values": out["values"], "bootstrap_values": out["bootstrap_values"]}
        if ref is not None:
            columns["ref_logprobs"] = ref
        batch.put(pack, **{name: tensor.detach().float().cpu().numpy() for name, tensor in columns.items()})

    def _set_advantages(self, module_id: str, batch: TokenBatch | None, meter: UpdateMeter) -> None:
        """Fill ``advantages`` and ``returns``."""
        settings = self.settings(module_id)
        b = batch or _EMPTY
        estimator = resolve_estimator(settings.ppo.advantage_estimator)
        raw = estimator(b.rewards, b.values, b.bootstrap_values, b.trajectory_offsets, settings.gamma, settings.lam)
        if settings.ppo.critic_target == "monte_carlo":
            returns = monte_carlo_returns(b.rewards, b.bootstrap_values, b.trajectory_offsets, settings.gamma)
        else:
            returns = raw + b.values
        roles, role = self._global_roles(b)
        normal = normalize(raw, settings.ppo.normalize_advantages, role, num_roles=roles, all_reduce=self.ranks.sum)
        if batch is not None:
            batch.advantages, batch.returns = normal, returns.astype(np.float32)
        meter.before = {f"advantage_{name}": value for name, value in RunningMoments.of(raw, self.ranks).items()}
        meter.before["return_mean"] = RunningMoments.of(returns, self.ranks)["mean"]
        meter.before["vf_explained_var"] = explained_variance(b.values, returns, self.ranks)

    def _global_roles(self, batch: Any) -> tuple[int, np.ndarray]:
        """Number of roles over all learners, and each token's index among them."""
        if self.ranks.world == 1:
            return max(1, len(batch.roles)), batch.role
        names = self.ranks.union(batch.roles)
        index = {name: i for i, name in enumerate(names)}
        table = np.array([index[name] for name in batch.roles], np.int64)
        return max(1, len(names)), table[batch.role] if len(batch.role) else batch.role

    # Losses.

    def _loss(self, module_id: str, batch: TokenBatch | None, pack: PackedBatch, out: Mapping[str, torch.Tensor], meter: UpdateMeter) -> Loss:
        """Token-level PPO: clipped policy loss with importance weights, value loss, entropy, KL to the reference."""
        settings = self.settings(module_id)
        ppo, logprobs, values = settings.ppo, out["logprobs"], out["values"]
        old = self._column(batch, pack, "old_logprobs")
        weights, sums = truncated_importance_weights(old, self._column(batch, pack, "rollout_logprobs"), ppo.importance_cap)
        advantages = self._column(batch, pack, "advantages")
        policy, policy_sums = policy_loss(logprobs, old, advantages, ppo.clip_low, ppo.clip_high, ppo.dual_clip, weights)
        returns, old_values = self._column(batch, pack, "returns"), self._column(batch, pack, "values")
        value, value_sums = value_loss(values, old_values, returns, ppo.value_clip)
        total = settings.vf_loss_coeff * value.sum()
        if not self._warming_up(module_id):
            total = total + policy.sum() - self._entropy_coefficient(module_id) * out["entropy"].sum()
        sums |= policy_sums | value_sums
        sums |= {
            "count": float(pack.num_actions),
            "policy_loss": policy.sum(),
            "vf_loss": value.sum(),
            "entropy": out["entropy"].sum(),
            "total_loss": total,
        }
        if settings.use_kl_loss:
            kl, kl_sums = kl_k3(logprobs, self._column(batch, pack, "ref_logprobs"))
            if not self._warming_up(module_id):
                total = total + float(self.curr_kl_coeffs_per_module[module_id]) * kl.sum()
            sums |= {"mean_kl_loss": kl_sums["kl"], "total_loss": total}
        if meter.first_minibatch:
            meter.max("first_minibatch_ratio_error", (torch.exp(logprobs.detach() - old) - 1.0).abs())
        return total, sums

    def _column(self, batch: TokenBatch | None, pack: PackedBatch, name: str) -> torch.Tensor:
        """A flat array at the action tokens of ``pack``, on the device."""
        if batch is None or pack.num_actions == 0:
            return torch.zeros(pack.num_actions, device=self._device)
        return torch.from_numpy(getattr(batch, name)[pack.token_slot]).to(self._device, non_blocking=True)

    # Reference and average.

    def set_reference(self) -> None:
        """Make the present weights the reference of the KL penalty. All learners must be asked."""
        for module_id in self._engines:
            self._references.pop(module_id, None)
            self._reference(module_id)

    def _reference(self, module_id: str) -> LanguageModelRLModule:
        if module_id not in self._references:
            with self._engines[module_id].full_state() as weights:
                self._references[module_id] = frozen_copy(self.module[module_id], weights, self._device)
        return self._references[module_id]

    def _update_average(self, module_id: str) -> None:
        decay = self.settings(module_id).ppo.ema_decay
        if decay is None:
            return
        with self._engines[module_id].full_state() as weights:
            if self.ranks.rank == 0:
                self._averages.setdefault(module_id, WeightAverage(decay)).update(weights)

    # Metrics.

    def _log_update(
        self, module_id: str, rows: Sequence[Row], batch: TokenBatch | None, meter: UpdateMeter, action_tokens: int, seconds: float
    ) -> None:
        b = batch or _EMPTY
        gap = np.abs(b.old_logprobs - b.rollout_logprobs)
        gap = gap[np.isfinite(gap)]
        meter.max("logprob_gap", gap)
        meter.max("staleness_max", self._weights_seq_no - b.policy_version)
        # The means are over tokens of all epochs; the sums that are not over tokens are taken out first.
        plain = meter.take(("steps", "nan_steps", "grad_norm", "computed_tokens", "row_tokens"))
        values = meter.means(self.ranks)
        values["logprob_gap_mean"] = values.pop("logprob_gap_abs", 0.0)
        computed, used, num_rows, cuts, stale = self.ranks.sum(
            [plain["computed_tokens"], plain["row_tokens"], len(rows), context_cuts(rows), float((self._weights_seq_no - b.policy_version).sum())]
        ).tolist()
        applied = max(plain["steps"] - plain["nan_steps"], 1.0)
        values |= meter.before | {
            "staleness": stale / action_tokens,
            "padding_waste": 1.0 - used / max(computed, 1.0),
            "trained_tokens": action_tokens,
            "trained_tokens_per_s": action_tokens / max(seconds, 1e-9),
            "update_s": seconds,
            "grad_norm": plain["grad_norm"] / applied,
            "nan_steps": plain["nan_steps"],
            "num_steps": plain["steps"],
            "num_rows": num_rows,
            "context_cuts": cuts,
            "num_row_tokens": float(self.ranks.sum(b.num_tokens)),
        }
        self.metrics.log_dict(values, key=module_id, window=1)


class LMGameSFTLearner(LMGameLearner):
    """Supervised learning on the same rows: cross-entropy on reply tokens, no value function, no pass before the update."""

    def _fits_one_pass(self, settings: LearnerSettings, batch: TokenBatch | None) -> bool:
        return False

    def _evaluate_before(self, module_id: str, batch: TokenBatch | None, meter: UpdateMeter) -> None:
        """Nothing to evaluate."""

    def _set_advantages(self, module_id: str, batch: TokenBatch | None, meter: UpdateMeter) -> None:
        """No advantages."""

    def _forward_flags(self, module_id: str) -> dict[str, Any]:
        return {"temperature": 1.0, "with_values": False}

    def _loss(self, module_id: str, batch: TokenBatch | None, pack: PackedBatch, out: Mapping[str, torch.Tensor], meter: UpdateMeter) -> Loss:
        loss = -out["logprobs"].sum()
        correct = (out["logprobs"].detach() > np.log(0.5)).float().sum()
        sums = {
            "count": float(pack.num_actions),
            "policy_loss": loss,
            "total_loss": loss,
            "entropy": out["entropy"].sum(),
            "confident_fraction": correct,
        }
        return loss, sums


class _Empty:
    """Stands for the batch of a learner that has no rows of a policy."""

    num_tokens = 0
    roles: tuple[str, ...] = ()
    trajectory_offsets = np.zeros(1, np.int64)

    def __getattr__(self, name: str) -> np.ndarray:
        return np.zeros(0, np.int64 if name in ("role", "policy_version") else np.float32)


_EMPTY = _Empty()
