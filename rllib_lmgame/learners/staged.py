"""A learner with two stages on the same weights: supervised learning first, PPO after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.utils.schedules.scheduler import Scheduler

from rllib_lmgame.learners.batching import PackedBatch, TokenBatch
from rllib_lmgame.learners.learner import LMGameLearner, LMGameSFTLearner, Loss
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.settings import LearnerSettings


@dataclasses.dataclass(frozen=True)
class SupervisedUpdate:
    """How one supervised update differs from the configured PPO update.

    Attributes:
        num_minibatches: Optimizer steps; one pass over the rows.
        lr: Learning rate of all parameters.
        lr_warmup_steps: Steps of linear warm-up.
    """

    num_minibatches: int
    lr: float
    lr_warmup_steps: int


class StagedLearner(LMGameLearner):
    """PPO, or with ``supervised`` in :meth:`update` the objective of :class:`LMGameSFTLearner`, with one optimizer."""

    _supervised: SupervisedUpdate | None = None

    def build(self) -> None:
        """Set up modules, optimizers and engines."""
        self._device_pushes: dict[str, Callable[[Mapping[str, torch.Tensor], int], Any]] = {}
        super().build()
        threads = self.config.token_ppo_options.num_threads
        if threads is not None:
            torch.set_num_threads(threads)

    def update(self, *args: Any, supervised: SupervisedUpdate | None = None, **kwargs: Any) -> Any:
        """See :meth:`LMGameLearner.update`.

        Args:
            args: As there.
            supervised: Learn the replies by cross-entropy instead of PPO.
            kwargs: As there.
        """
        self._supervised = supervised
        if supervised is None:
            return super().update(*args, **kwargs)
        schedules = dict(self._optimizer_lr_schedules)
        constant = Scheduler(fixed_value_or_schedule=supervised.lr, framework=self.framework, device=self._device)
        self._optimizer_lr_schedules = dict.fromkeys(schedules, constant)
        try:
            return super().update(*args, **kwargs)
        finally:
            self._optimizer_lr_schedules = schedules
            self._supervised = None

    def begin_ppo(self) -> None:
        """Forget what the supervised stage counted: warm-ups begin anew, reference and average start from the present weights."""
        for module_id in self._engines:
            self._updates[module_id] = self._optimizer_steps[module_id] = 0
            self._set_scheduled_kl(module_id)
        self._references.clear()
        self._averages.clear()

    def _update_module_kl_coeff(self, *, module_id: str, config: Any, kl_loss: float) -> None:
        """RLlib's adaptive coefficient, or the scheduled one."""
        if not self._set_scheduled_kl(module_id):
            super()._update_module_kl_coeff(module_id=module_id, config=config, kl_loss=kl_loss)

    def _set_scheduled_kl(self, module_id: str) -> bool:
        """Whether the coefficient follows a schedule; if so it is set."""
        schedule = self.settings(module_id).ppo.kl_schedule
        if schedule is None:
            return False
        iterations, values = zip(*schedule, strict=True)
        self.curr_kl_coeffs_per_module[module_id].data.fill_(float(np.interp(self._updates[module_id], iterations, values)))
        return True

    def push_on_device(self, module_id: str, push: Callable[[Mapping[str, torch.Tensor], int], Any], version: int) -> None:
        """Gather the weights and let the first learner send its tensors to the engines. All learners must be asked.

        Args:
            module_id: Policy.
            push: Sends named tensors as a version; kept, since it holds the connection to the engines.
            version: Version of the weights.
        """
        sender = self._device_pushes.setdefault(module_id, push)
        with self._engines[module_id].full_state() as weights:
            if self.ranks.rank == 0:
                sender(weights, version)
        self.ranks.barrier()

    def settings(self, module_id: str) -> LearnerSettings:
        """The module's settings, with those of the supervised update on top."""
        settings = super().settings(module_id)
        if self._supervised is None:
            return settings
        ppo = dataclasses.replace(
            settings.ppo,
            num_minibatches=self._supervised.num_minibatches,
            lr_warmup_steps=self._supervised.lr_warmup_steps,
            critic_warmup_iterations=0,
            ema_decay=None,
        )
        return dataclasses.replace(settings, ppo=ppo, num_epochs=1, use_kl_loss=False)

    def _fits_one_pass(self, settings: LearnerSettings, batch: TokenBatch | None) -> bool:
        return self._supervised is None and super()._fits_one_pass(settings, batch)

    def _evaluate_before(self, module_id: str, batch: TokenBatch | None, meter: UpdateMeter) -> None:
        if self._supervised is None:
            super()._evaluate_before(module_id, batch, meter)

    def _set_advantages(self, module_id: str, batch: TokenBatch | None, meter: UpdateMeter) -> None:
        if self._supervised is None:
            super()._set_advantages(module_id, batch, meter)

    def _forward_flags(self, module_id: str) -> dict[str, Any]:
        if self._supervised is None:
            return super()._forward_flags(module_id)
        return LMGameSFTLearner._forward_flags(self, module_id)

    def _loss(self, module_id: str, batch: TokenBatch | None, pack: PackedBatch, out: Mapping[str, torch.Tensor], meter: UpdateMeter) -> Loss:
        if self._supervised is None:
            return super()._loss(module_id, batch, pack, out, meter)
        return LMGameSFTLearner._loss(self, module_id, batch, pack, out, meter)
