"""What an objective is, and how one is found by name.

A learner asks it, in this order: what of the settings it changes, and what it has to know of the policy before the
first step. Then how to run the forward pass, for the loss of each micro-batch, and which parameters a step changes. It
sees a :class:`ModuleUpdate`, never the learner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.advantages import advantage_inputs, monte_carlo_returns
from rllib_lmgame.learners.critic.critic import Critic, TokenUnits
from rllib_lmgame.learners.data.batching import NO_ROWS, MinibatchSize, PackedBatch, TokenBatch
from rllib_lmgame.learners.engines.torch_engine import PARTS
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.settings.plugins import OBJECTIVES, check_methods
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


class Objective:
    """What one update minimises. Of the configured class every policy has an object of its own; one given to an update
    serves all its policies. What is not overridden is as an objective without anything special has it: only
    :meth:`loss` must be.
    """

    needs_old_policy: bool = True
    """It needs figures of the policy as it was before the update: :meth:`record` sees every micro-batch and then
    :meth:`prepare` is called, before the first step; otherwise neither is.
    """

    lr: float | None = None
    """Learning rate of all parameters where the objective is given to one update; ``None`` keeps the configured one."""

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        """The settings of an update with this objective, from the configured ones."""
        return settings

    def needs_groups(self, settings: LearnerSettings) -> bool:
        """Whether the trajectories of a group must be in one minibatch of one learner."""
        return False

    def needs_critic(self, settings: LearnerSettings) -> bool:
        """Whether the module has a value function."""
        return True

    def record(
        self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: Mapping[str, Any]
    ) -> None:
        """Keep what is needed of a forward pass of the policy before the update."""

    def prepare(self, update: ModuleUpdate) -> None:
        """Every micro-batch is recorded. All learners take part."""

    def has_gradient(self, update: ModuleUpdate) -> bool:
        """Whether the update has one at all, asked behind :meth:`prepare`; it is left out otherwise. The same on all
        learners, which all ask.
        """
        return True

    def critic_targets(self, update: ModuleUpdate) -> np.ndarray:
        """What a critic's warm-up fits, float32 ``[A]``, behind :meth:`prepare`: here returns discounted per token. All
        learners take part.
        """
        settings = update.settings
        rows = NO_ROWS if update.batch is None else update.batch
        return monte_carlo_returns(advantage_inputs(rows, gamma=settings.gamma, lam=settings.lam, ranks=update.ranks))

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        """Arguments of the forward pass with gradient."""
        return {"temperature": update.settings.temperature, "with_values": self.needs_critic(update.settings)}

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """Loss of one micro-batch from the outputs of its forward pass."""
        raise NotImplementedError

    def trained_parts(self, update: ModuleUpdate) -> Collection[str]:
        """Those of :data:`~rllib_lmgame.learners.engines.torch_engine.PARTS` that a step changes."""
        return PARTS

    def get_state(self) -> Any:
        """What it remembers from update to update, as JSON can hold it and the same on all learners, for the
        checkpoint; ``None`` for nothing.
        """
        return None

    def set_state(self, state: Any) -> None:
        """Undo :meth:`get_state`."""


def resolve_objective(name: str) -> Objective:
    """A new object of the class registered under ``name``, or of that at ``package.module:Class``.

    Raises:
        ConfigError: No such objective (the message names the nearest one), or one that is none, or whose methods take
            something else.
    """
    found = OBJECTIVES.make(name)
    hint = f"derive from {Objective.__name__} ({__name__}), or from PPOObjective (rllib_lmgame.learners.objectives.ppo)"
    if not isinstance(found, Objective):
        raise ConfigError(OBJECTIVES.key, f"`{name}` is no objective; {hint}")
    if type(found).loss is Objective.loss:
        raise ConfigError(OBJECTIVES.key, f"`{name}` has no loss of its own; {hint}")
    check_methods(found, Objective, name, OBJECTIVES.key)
    return found
