"""The interface of an objective.

A learner asks it, in this order: what of the settings it changes, what it has to know of the policy before the first
step, how to run the forward pass, for the loss of each micro-batch, and which parameters a step changes. It sees a
:class:`ModuleUpdate`, never the learner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rllib_lmgame.learners.critic.critic import Critic, TokenUnits
from rllib_lmgame.learners.data.batching import MinibatchSize, PackedBatch, TokenBatch
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.settings.sections.token_ppo import FIT

Loss = tuple[torch.Tensor, dict[str, Any]]
"""Sum of the loss over the action tokens of a micro-batch, which is divided by the action tokens of the minibatch on
all learners, and sums for the metrics.
"""


@dataclass(frozen=True, kw_only=True)
class ModuleUpdate:
    """One update of one module, as its objective sees it.

    Attributes:
        module_id: Which module.
        settings: Those of this update.
        batch: The rows; ``None`` on a learner that has none and takes part for the others' sake.
        meter: Collects the figures.
        ranks: All learners of the update.
        reference_logprobs: Log-probabilities of a micro-batch's action tokens under the frozen reference model, float32
            ``[A]``, given its inputs. All learners must ask the first time.
        entropy_coefficient: The scheduled one at this iteration.
        kl_coefficient: The adaptive or scheduled one at this iteration; 0 without ``use_kl_loss``.
        num_updates: Updates of the module before this one, those of a supervised stage left out.
        minibatch: What the present minibatch has on all learners; ``None`` before the first.
        critic: Units and fit of the value function; ``None`` without one.
    """

    module_id: str
    settings: LearnerSettings
    batch: TokenBatch | None
    meter: UpdateMeter
    ranks: Ranks
    reference_logprobs: Callable[[Mapping[str, Any]], torch.Tensor]
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    num_updates: int = 0
    critic: Critic | None = None
    minibatch: MinibatchSize | None = None

    @property
    def critic_warms_up(self) -> bool:
        """Whether the critic warms up and the policy rests."""
        return self.settings.critic_warms_up(self.num_updates)

    @property
    def fits_critic(self) -> bool:
        """Whether that is a fit of the value head's last layer: nothing else changes."""
        return self.critic_warms_up and self.settings.ppo.critic_warmup == FIT

    def column(self, pack: PackedBatch, name: str, like: torch.Tensor) -> torch.Tensor:
        """A flat array at the action tokens of ``pack``, on the device of ``like``."""
        if self.batch is None or pack.num_actions == 0:
            return torch.zeros(pack.num_actions, device=like.device)
        return torch.from_numpy(getattr(self.batch, name)[pack.token_slot]).to(like.device, non_blocking=True)

    def value_units(self, pack: PackedBatch, like: torch.Tensor) -> TokenUnits | None:
        """Units of the value function at the action tokens of ``pack``; ``None`` where values are plain rewards."""
        return None if self.critic is None else self.critic.token_units(self.batch, pack, like.device)


class Objective(Protocol):
    """What one update minimises. Of the configured class every policy has an object of its own; one given to an update
    serves all its policies.

    A configured one that remembers something from update to update has ``get_state()``, which gives what JSON can hold,
    and ``set_state(state)``; both are part of the checkpoint. What it remembers is the same on all learners. One with a
    method ``needs_critic(settings)`` that says no gets a module without a value function. One with a method
    ``has_gradient(update)``, asked behind :meth:`prepare`, may say that an update has none, the same on all learners:
    it is left out then. One with a method ``critic_targets(update)``, asked behind :meth:`prepare`, says what a
    critic's warm-up fits, float32 ``[A]``, in place of returns discounted per token.
    """

    @property
    def needs_old_policy(self) -> bool:
        """Whether it needs figures of the policy as it was before the update.

        If so :meth:`record` sees every micro-batch and then :meth:`prepare` is called, before the first step; otherwise
        neither is.
        """

    @property
    def lr(self) -> float | None:
        """Learning rate of all parameters where the objective is given to one update; ``None`` keeps
        the configured one.
        """

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        """The settings of an update with this objective, from the configured ones."""

    def needs_groups(self, settings: LearnerSettings) -> bool:
        """Whether the trajectories of a group must be in one minibatch of one learner."""

    def record(
        self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: Mapping[str, Any]
    ) -> None:
        """Keep what is needed of a forward pass of the policy before the update."""

    def prepare(self, update: ModuleUpdate) -> None:
        """Every micro-batch is recorded. All learners take part."""

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        """Arguments of the forward pass with gradient."""

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """Loss of one micro-batch from the outputs of its forward pass."""

    def trained_parts(self, update: ModuleUpdate) -> Collection[str]:
        """Those of :data:`~rllib_lmgame.learners.engines.torch_engine.PARTS` that a step changes."""
