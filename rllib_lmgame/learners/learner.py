"""The learner: an objective minimised over packed rows of tokens.

What an update does to one policy stands in :meth:`LMGameLearner._update_module`; the passes and steps in between in
:mod:`rllib_lmgame.learners.objectives.base`.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_CURR_KL_COEFF_KEY
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.utils.metrics import (
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_NON_TRAINABLE_PARAMETERS,
    NUM_TRAINABLE_PARAMETERS,
)
from ray.rllib.utils.schedules.scheduler import Scheduler

from rllib_lmgame.inference.weights import CHECKED_EVERY, AdapterBundle, DevicePush, WeightBundle, pack_state
from rllib_lmgame.learners.critic import Critic
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.engines.deepspeed_engine import DeepSpeedEngine, deepspeed_config, divide
from rllib_lmgame.learners.engines.host_states import HostStates
from rllib_lmgame.learners.engines.reference import Reference, Teacher, WeightAverage
from rllib_lmgame.learners.engines.torch_engine import (
    TorchEngine,
    forget_moments,
    learning_rates,
    make_optimizer,
    set_learning_rates,
)
from rllib_lmgame.learners.learner_state import LearnerStateMixin
from rllib_lmgame.learners.metrics import UpdateMeter, update_metrics, write_tokens
from rllib_lmgame.learners.microbatch import found_tokens
from rllib_lmgame.learners.objectives import ModuleUpdate, Objective, PPOObjective
from rllib_lmgame.learners.objectives.base import LearnerSettings, StepCounts, UpdateLoop
from rllib_lmgame.learners.options import COEFF_RANGE, WeightUse, learner_threads, optimizer_is_guarded
from rllib_lmgame.learners.process import ProcessGroup, give_back_memory, keep_freed_memory
from rllib_lmgame.policies.model.export import Played
from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule
from rllib_lmgame.rollouts.episode_log import SAMPLE_BYTES, TOKENS
from rllib_lmgame.rollouts.records import Trajectory, played_parts, trajectory_of

if TYPE_CHECKING:
    from rllib_lmgame.learners.engines.teacher_client import TeacherClient


class LMGameLearner(LearnerStateMixin, PPOTorchLearner):
    """RLlib's PPO learner over packed rows of tokens.

    RLlib keeps the hooks around an update, the adaptive KL coefficient, the schedules of learning rate and entropy
    coefficient, the optimizer registry and the metrics. All learners log the figures of the whole update.
    """

    def __repr__(self) -> str:
        """What Ray's dashboard and logs call its actor; it gets its number later."""
        return "learner"

    def build(self) -> None:
        self._settings: dict[str, LearnerSettings] = {}
        self._scheduled: dict[str, float] = {}
        self.engines: dict[str, TorchEngine] = {}
        self.references: dict[str, Reference] = {}
        self.averages: dict[str, WeightAverage] = {}
        self.teachers: dict[str, Teacher] = {}
        self.teacher_client: TeacherClient | None = None
        self._reference_known: dict[str, dict[str, np.ndarray]] = {}
        self.critics: dict[str, Critic] = {}
        self.updates: dict[str, int] = {}
        self._steps: dict[str, StepCounts] = {}
        self._device_pushes: dict[str, DevicePush] = {}
        self._packed: dict[str, Iterator[int]] = {}
        self._lifetime_timesteps = 0
        self._microbatch_tokens: dict[str, int] = {}
        self._objectives: dict[str, PPOObjective] = {}
        self._given_objective: Objective | None = None
        threads = learner_threads(self.config)
        if threads is not None:
            torch.set_num_threads(threads)
        super().build()
        self._host = HostStates(self._device)
        for module_id in self.engines:
            self._set_kl_coef(module_id)
        if self._device.type == "cpu":
            give_back_memory(keep=0)  # What setting up has freed is of no use to an update.
            keep_freed_memory()

    # Set-up, called by RLlib's build().

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        module = self.module[module_id]
        if not isinstance(module, LanguageModelRLModule):
            return
        settings = self.settings(module_id)
        if (settings.deepspeed or {}).get("activation_checkpointing"):
            module.recompute_activations()  # By the model's own gradient checkpointing.
        if settings.ppo.torch_compile:
            module.compile_layers()
        if module.empty:
            ranks = ProcessGroup.current(self.config.num_learners, self._device)
            divide(module, ranks, deepspeed_config(settings.deepspeed or {}, settings.grad_clip))
        optimizer = make_optimizer(
            module,
            settings.ppo,
            max_grad_norm=settings.grad_clip,
            lr=0.0,
            guarded=optimizer_is_guarded(settings.deepspeed),
        )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr
        )

    def _set_optimizer_lr(self, optimizer: Any, lr: float) -> None:
        """RLlib's scheduled rate, in groups that have none of their own: a checkpoint holds the rates of steps."""
        (name,) = (name for name, own in self._named_optimizers.items() if own is optimizer)
        settings = self.settings(self._optimizer_name_to_module[name])
        set_learning_rates(optimizer, learning_rates(settings.ppo, lr))

    def _make_modules_ddp_if_necessary(self) -> None:
        self.ranks = ProcessGroup.current(self.config.num_learners, self._device)
        for module_id, tokens in self._microbatch_tokens.items():  # The fewest: all must know alike what fits one pass.
            self._microbatch_tokens[module_id] = -int(self.ranks.max(-tokens))
        self._settings.clear()
        for module_id in sorted(self.module.keys()):
            module = self.module[module_id]
            if not isinstance(module, LanguageModelRLModule) or not self.should_module_be_updated(module_id):
                continue
            settings, optimizer = self.settings(module_id), self.get_optimizer(module_id)
            self.ranks.copy_from_first(p for p in module.parameters() if p.numel())  # A fresh value head is random.
            if settings.deepspeed is None:
                self.engines[module_id] = TorchEngine(module, optimizer, self.ranks)
            else:
                config = deepspeed_config(settings.deepspeed, settings.grad_clip)
                self.engines[module_id] = DeepSpeedEngine(module, optimizer, self.ranks, config)
                module.sharded = True
            if module.value_head is not None:
                self.critics[module_id] = Critic(self.engines[module_id], self.ranks)
            self.updates[module_id], self._steps[module_id] = 0, StepCounts()

    def settings(self, module_id: str) -> LearnerSettings:
        """Settings of one module, with its overrides and what the present objective changes."""
        settings = self.objective(module_id).adapted(self._configured(module_id))
        return settings if self.module[module_id].value_head is not None else settings.without_critic()

    def _configured(self, module_id: str) -> LearnerSettings:
        if module_id not in self._settings:
            run = self.config.get_config_for_module(module_id).run
            settings = LearnerSettings.of_run(run, self._scheduled_of(module_id))
            if settings.ppo.microbatch is None:
                settings = replace(settings, microbatch_tokens=self._found_tokens(module_id, settings))
            self._settings[module_id] = settings
        return self._settings[module_id]

    def _found_tokens(self, module_id: str, settings: LearnerSettings) -> int:
        """Tokens of a micro-batch with ``auto``: found once, then kept, also by checkpoints."""
        if module_id not in self._microbatch_tokens:
            room, on_gpu = getattr(self.config, "learner_rooms", {}).get(module_id), self._device.type != "cpu"
            card = torch.cuda.get_device_properties(self._device).total_memory if on_gpu and room is not None else 0
            most = None if room is None else room.activations(card)
            context = settings.ppo.max_row_tokens or self.module[module_id].options.context_length
            self._microbatch_tokens[module_id] = found_tokens(self.module[module_id], context, on_gpu, most)
        return self._microbatch_tokens[module_id]

    def microbatches(self) -> dict[str, int]:
        return {module_id: self.settings(module_id).microbatch_tokens for module_id in self.engines}

    def _scheduled_of(self, module_id: str) -> dict[str, float]:
        own = self.config.run.own_keys(module_id)
        return {key: value for key, value in self._scheduled.items() if key not in own}

    def objective(self, module_id: str) -> Objective:
        """What the present update of one module minimises."""
        return self._given_objective or self._objectives.setdefault(module_id, PPOObjective())

    # The update.

    def update(
        self,
        training_data: Any = None,
        *,
        episodes: Any = None,
        timesteps: Mapping[str, Any] | None = None,
        objective: Objective | None = None,
        scheduled: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train every policy on its trajectories in ``training_data``, or in a list of ``episodes``; returns metrics.

        Args:
            training_data: :class:`~rllib_lmgame.learners.data.sharding.WholeEpisodes`, or RLlib's ``TrainingData``.
            timesteps: RLlib's counters, for schedules.
            objective: What to minimise in this update, instead of PPO's objective.
            scheduled: Options that follow a schedule -> their values from now on, for policies without their own.
        """
        self._check_is_built()
        timesteps = dict(timesteps or {})
        self._lifetime_timesteps = int(timesteps.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0))
        self._follow(scheduled or {})
        self.before_gradient_based_update(timesteps=timesteps)
        if training_data is not None:
            training_data.validate()
            training_data.solve_refs()
            episodes = training_data.episodes
        trajectories = self._trajectories(episodes)
        with nullcontext() if objective is None else self._in_place_of_configured(objective):
            for module_id in self.engines:
                if self.should_module_be_updated(module_id):
                    self._update_module(module_id, trajectories.get(module_id, []))
            self._weights_seq_no += 1
            for module_id in self.engines:
                self.module[module_id].version = self._weights_seq_no
            self.after_gradient_based_update(timesteps=timesteps)
        if self.config.num_gpus_per_learner % 1:  # For engines on the same GPU, which wake up and take weights.
            torch.cuda.empty_cache()
        give_back_memory()
        return self.metrics.reduce()

    def offload(self) -> None:
        """Leave the device to engines that play: nothing but :meth:`reload` may be asked before that."""
        copies = [each.module for copies in (self.references, self.teachers) for each in copies.values()]
        self._host.offload(copies, [engine.states() for engine in self.engines.values()])

    def reload(self) -> None:
        """Undo :meth:`offload`, bit for bit."""
        self._host.reload()

    def _follow(self, values: Mapping[str, float]) -> None:
        if not values:
            return
        if values != self._scheduled:
            self._scheduled = dict(values)
            self._settings.clear()
        for module_id in self.engines:
            values = self._scheduled_of(module_id)
            if "lr" in values:
                self._optimizer_lr_schedules[self.get_optimizer(module_id)] = self._fixed(values["lr"])
            if "entropy_coeff" in values:
                self.entropy_coeff_schedulers_per_module[module_id] = self._fixed(values["entropy_coeff"])
            self._set_kl_coef(module_id)

    def _fixed(self, value: float) -> Scheduler:
        return Scheduler(fixed_value_or_schedule=value, framework=self.framework, device=self._device)

    @contextmanager
    def _in_place_of_configured(self, objective: Objective) -> Iterator[None]:
        """Meanwhile another objective, and its learning rate if it has one."""
        schedules: dict[Any, Scheduler] = self._optimizer_lr_schedules  # type: ignore[has-type]
        if objective.lr is not None:
            self._optimizer_lr_schedules = dict.fromkeys(schedules, self._fixed(objective.lr))
        self._given_objective = objective
        try:
            yield
        finally:
            self._given_objective, self._optimizer_lr_schedules = None, schedules

    def begin_rl(self) -> None:
        """Forget a supervised stage: optimizers, warm-ups, reference begin anew; the first update begins an average."""
        for module_id in self.engines:
            forget_moments(self.get_optimizer(module_id))
            self._begin_module(module_id)

    def _begin_module(self, module_id: str) -> None:
        self.updates[module_id] = self._steps[module_id].applied = 0
        self._set_kl_coef(module_id)
        if module_id in self.critics:
            self.critics[module_id].sums.clear()
        self.references.pop(module_id, None)
        self._reference_known.pop(module_id, None)
        self.averages.pop(module_id, None)

    def build_batch(self, module_id: str, trajectories: Sequence[Trajectory]) -> TokenBatch:
        """The rows a policy is trained on; override to change what becomes of a trajectory."""
        settings = self.settings(module_id)
        if "text_rollouts.reward_scale" in self.config.run.own_keys(module_id):  # In every game.
            trajectories = [replace(each, reward_scale=None) for each in trajectories]
        limit = settings.ppo.max_row_tokens or self.module[module_id].options.context_length
        return TokenBatch.from_trajectories(
            trajectories,
            max_row_tokens=limit,
            reward_scale=settings.reward_scale,
            observations=settings.ppo.env_token_loss_weight > 0 and self.objective(module_id).learns_observations,
        )

    def _trajectories(self, episodes: Sequence[Any]) -> dict[str, list[Trajectory]]:
        by_module: dict[str, list[Trajectory]] = {}
        for episode in episodes:
            for part in played_parts(episode, self.engines.keys()):
                by_module.setdefault(str(part.module_id), []).append(trajectory_of(part))
        return by_module

    def _update_module(self, module_id: str, trajectories: Sequence[Trajectory]) -> None:
        started = time.perf_counter()
        settings, meter = self.settings(module_id), UpdateMeter()
        batch = self.build_batch(module_id, trajectories)
        logged = np.array([trajectories[number].logged for number in batch.trajectory_ids.tolist()], bool)
        if logged.any():
            batch.shown = logged[batch.trajectory]
        action_tokens = int(self.ranks.sum(batch.num_actions))
        if action_tokens == 0:
            return
        lora = self.module[module_id].options.lora
        if lora is not None and lora.dropout:  # A resumed run drops the same.
            entropy = settings.minibatch_seed(self._weights_seq_no, 0, self.ranks.rank)
            torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
        self._loop(module_id, settings, batch, meter).run(self._weights_seq_no)
        self.updates[module_id] += 1
        self._update_copies(module_id)
        seconds, version = time.perf_counter() - started, self._weights_seq_no
        if len(batch.shown):
            path = Path(getattr(self.config, "episode_log_dir", None) or ".") / f"learner-{self.ranks.rank}{TOKENS}"
            sampled = self.config.run.text_rollouts.episode_log == "sample"
            write_tokens(path, batch, trajectories, version, SAMPLE_BYTES // self.ranks.world if sampled else math.inf)
        values = update_metrics(meter, batch, self.ranks, version=version, tokens=action_tokens, seconds=seconds)
        for name, trained in ((NUM_TRAINABLE_PARAMETERS, True), (NUM_NON_TRAINABLE_PARAMETERS, False)):
            own = (p for p in self.module[module_id].parameters() if p.requires_grad == trained)
            values[name] = float(sum(getattr(p, "ds_numel", p.numel()) for p in own))
        self.metrics.log_dict(values, key=module_id, window=1)

    def _loop(self, module_id: str, settings: LearnerSettings, batch: TokenBatch, meter: UpdateMeter) -> UpdateLoop:
        flags = {"temperature": settings.temperature, "with_entropy": False, "with_values": False}
        teacher = settings.teacher
        asked = self._teacher_client(teacher.model) if teacher is not None and teacher.is_asked else None

        update = ModuleUpdate(
            module_id=module_id,
            settings=settings,
            batch=batch,
            meter=meter,
            ranks=self.ranks,
            reference_logprobs=lambda inputs: self.reference(module_id).forward({**inputs, **flags})["logprobs"],
            teacher_logprobs=None
            if teacher is None or asked is not None
            else lambda inputs: self._teacher(module_id, settings).logprobs({**inputs, **flags}),
            ask_teacher=None if asked is None else asked.logprobs,
            entropy_coefficient=float(self.entropy_coeff_schedulers_per_module[module_id].get_current_value()),
            kl_coefficient=float(self.curr_kl_coeffs_per_module[module_id]) if settings.ppo.kl is not None else 0.0,
            num_updates=self.updates[module_id],
            critic=self.critics.get(module_id),
            reference_known=self._reference_known.setdefault(module_id, {}),
        )
        optimizer = self.get_optimizer(module_id)
        return UpdateLoop(
            update=update,
            objective=self.objective(module_id),
            engine=self.engines[module_id],
            optimizer=optimizer,
            lr=float(self._optimizer_lr_schedules[optimizer].get_current_value()),
            steps=self._steps[module_id],
            device=self._device,
        )

    def measured_losses(self, episodes: Sequence[Any], objective: Objective) -> dict[str, float]:
        """The mean loss of ``objective`` on each policy's part of ``episodes``, not trained on. All learners must be
        asked.
        """
        trajectories, found = self._trajectories(episodes), {}
        with self._in_place_of_configured(objective):
            for module_id in self.engines:
                batch, settings = self.build_batch(module_id, trajectories.get(module_id, [])), self.settings(module_id)
                with _dropping_nothing(self.module[module_id]):
                    found[module_id] = self._loop(module_id, settings, batch, UpdateMeter()).measured_loss()
        return found

    # The KL coefficient: RLlib's adaptive one, or scheduled.

    def _update_module_kl_coeff(self, *, module_id: str, config: Any, kl_loss: float) -> None:
        """RLlib's adaptive coefficient within its range, or ``kl.coef``.

        A critic's warm-up says nothing about it, nor an update without the policy, whose divergence RLlib gives as NaN.
        """
        settings = self.settings(module_id)
        kl = settings.ppo.kl
        if kl is None:
            return
        coefficient = self.curr_kl_coeffs_per_module[module_id].data
        if kl.coef is None:
            if settings.critic_warms_up(self.updates[module_id] - 1):
                return
            if not math.isnan(kl_loss):
                super()._update_module_kl_coeff(module_id=module_id, config=config, kl_loss=kl_loss)
            coefficient.clamp_(config.kl_coeff / COEFF_RANGE, config.kl_coeff * COEFF_RANGE)
        self.metrics.log_value((module_id, LEARNER_RESULTS_CURR_KL_COEFF_KEY), coefficient.item(), window=1)

    def _set_kl_coef(self, module_id: str) -> None:
        kl = self.settings(module_id).ppo.kl
        if kl is not None and kl.coef is not None:
            self.curr_kl_coeffs_per_module[module_id].data.fill_(kl.coef)

    # Reference and average.

    def reference(self, module_id: str) -> Reference:
        """What the KL penalty compares with; all learners must ask for it the first time."""
        if module_id not in self.references:
            with self.engines[module_id].own_state() as weights:
                self.references[module_id] = self._make_reference(module_id, weights)
        return self.references[module_id]

    def _teacher(self, module_id: str, settings: LearnerSettings) -> Teacher:
        if module_id not in self.teachers:
            assert settings.teacher is not None
            self.teachers[module_id] = Teacher(self.engines[module_id], settings.teacher, self._device)
        return self.teachers[module_id]

    def _teacher_client(self, model: str) -> TeacherClient:
        """One for all policies; made when it is first needed, where its key is looked for."""
        if self.teacher_client is None:
            from rllib_lmgame.learners.engines.teacher_client import TeacherClient  # Of an HTTP client.

            self.teacher_client = TeacherClient(model)
        return self.teacher_client

    def _update_copies(self, module_id: str) -> None:
        ppo = self.settings(module_id).ppo
        decay, reference = ppo.ema_decay, None if ppo.kl is None else self.references.get(module_id)
        moves = reference is not None and reference.options.moves_after(self.updates[module_id])
        if decay is None and not moves:
            return
        engine = self.engines[module_id]
        with engine.own_state() as weights:
            if decay is not None and (engine.divides_copies or self.ranks.rank == 0):  # One learner keeps it, for all.
                self.averages.setdefault(module_id, WeightAverage(decay)).update(weights)
            if reference is not None and moves:
                reference.follow(weights)

    def push_on_device(
        self, module_id: str, push: DevicePush, version: int, use: WeightUse = WeightUse.TRAINING
    ) -> None:
        """Send the weights from GPU to GPU to the engines. All learners must be asked; one that fails leaves the others
        waiting for it.

        ``push`` is kept from the first time, since it holds the connection to the engines.
        """
        sender, module = self._device_pushes.setdefault(module_id, push), self.module[module_id]
        with self.ranks.all_or_none(), self.weights_for(use, module_id, everyone=True) as weights:
            state, like = module.as_checkpoint(weights, self._device), module.like_checkpoint(weights)
            sender(state, like, version, self.ranks.rank, self._device)

    def _log_trainable_parameters(self) -> None:
        """RLlib logs these numbers once, which makes them NaN in every later result; here each update does."""

    def weights_for(
        self, use: WeightUse, module_id: str, trained: bool = False, everyone: bool = False
    ) -> AbstractContextManager[Mapping[str, torch.Tensor]]:
        """The tensors for ``use``, as :meth:`TorchEngine.full_state` gives them. All must ask.

        With ``everyone`` also :meth:`PolicyNetwork.as_checkpoint` of them is read on all ranks in the same order.
        """
        average = None if use is WeightUse.TRAINING else self.averages.get(module_id)  # None before the first update.
        others = {} if average is None else average.tensors
        return self.engines[module_id].full_state(trained, others, everyone)

    def pack_weights(self, module_id: str, version: int, use: WeightUse = WeightUse.TRAINING) -> WeightBundle | None:
        """On rank 0 the complete tensors as the model's checkpoint has them, in one buffer. All must be asked.

        The first ones and every :data:`CHECKED_EVERY`-th have a checksum.
        """
        module = self.module[module_id]
        with self.weights_for(use, module_id) as weights:
            if self.ranks.rank > 0:
                return None
            checked = next(self._packed.setdefault(module_id, itertools.count())) % CHECKED_EVERY == 0
            return pack_state(module.as_checkpoint(weights), version, module.like_checkpoint(weights), checked)

    def pack_adapter(self, module_id: str, version: int, use: WeightUse = WeightUse.TRAINING) -> AdapterBundle | None:
        """On rank 0 the policy's adapter in PEFT's form. All learners must be asked."""
        with tempfile.TemporaryDirectory() as directory:
            self.export_member(directory, module_id, use)
            return None if self.ranks.rank else AdapterBundle.read(Path(directory), None, version)

    def export_hf(
        self,
        directory: str | Path,
        module_id: str,
        use: WeightUse = WeightUse.EXPORT,
        adapter: str | Path | None = None,
    ) -> None:
        """Rank 0 writes a policy's Hugging Face directory, and its ``adapter`` if it has one. All must be asked."""
        module = self.module[module_id]
        with self.ranks.all_or_none(), self.weights_for(use, module_id) as weights:
            if self.ranks.rank == 0:
                if files := getattr(self.config, "model_files", {}).get(module_id):
                    files.directory()  # Unpacked anew where temporary files have been removed meanwhile.
                module.save_hf(directory, weights, self._played())
                if adapter is not None and module.adapters is not None:
                    module.adapters.save(Path(adapter), weights)

    def export_member(self, directory: str | Path, module_id: str, use: WeightUse) -> None:
        """Rank 0 writes a snapshot for a league: the policy's adapter, or all its weights. All must be asked."""
        adapters = self.module[module_id].adapters
        if adapters is None:
            return self.export_hf(directory, module_id, use)
        with self.ranks.all_or_none(), self.weights_for(use, module_id, trained=True) as weights:
            if self.ranks.rank == 0:
                adapters.save(Path(directory), weights)

    def _played(self) -> Played | None:
        """What the policies are trained on, for model cards; ``None`` in a configuration that knows no games, or
        without any.
        """
        config, sampling = self.config, self.config.run.inference
        games: tuple[Any, ...] = getattr(config, "training_games", tuple)()
        if not games:
            return None
        return Played(
            games=[(game.env, game.env_config) for game in games],
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            constrained_decoding=config.run.text_rollouts.constrained_decoding,
        )


@contextmanager
def _dropping_nothing(module: torch.nn.Module) -> Iterator[None]:
    """Inside, dropout (of adapters) is off; then every part is in its own mode again."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
