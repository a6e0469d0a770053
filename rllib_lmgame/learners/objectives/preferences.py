"""Learning from preferences: DPO and its kin, on trajectories of many turns.

A trajectory's log-probability is the sum over the tokens of its replies; what the game said is context. The two of a
pair are a group, and the sign of a trajectory's reward says which is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch

from rllib_lmgame.learners.data.batching import PackedBatch, TokenBatch
from rllib_lmgame.learners.engines.torch_engine import POLICY
from rllib_lmgame.learners.losses.preferences import PreferenceLoss, Sides
from rllib_lmgame.learners.objectives.base import LearnerSettings, Loss, ModuleUpdate, Objective
from rllib_lmgame.telemetry.metrics import PREFERENCE_NAMES


@dataclass(eq=False)
class PreferenceObjective(Objective):
    """The loss of pairs: its mean over those of a minibatch, on all learners.

    The derivative by each trajectory's sum is known before the pass with gradient: where a minibatch is more than one
    pass, the sums come from a pass without. So a pair need not fit one micro-batch, and the gradient is exact. With
    ``of_files`` the reference's numbers are kept by the episodes' ids, which mean the same for good, and the sampler's
    are not compared with the policy's.
    """

    of_sides: PreferenceLoss
    beta: float = 0.1
    sft_weight: float = 0.0
    of_files: bool = False
    records_each_step: ClassVar[bool] = True
    _recorded: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list, init=False, repr=False)

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        return replace(settings.of_another_loss(), temperature=1.0)

    def needs_groups(self, settings: LearnerSettings) -> bool:
        return True

    def needs_critic(self, settings: LearnerSettings) -> bool:
        return False

    def needs_reference(self, update: ModuleUpdate) -> bool:
        """Whether the reference has to be asked: not where what it says of every trajectory is remembered."""
        if not self.of_sides.asks_reference:
            return False
        known = update.reference_known if self.of_files else {}
        batch, missing = update.batch, 0
        for name, (a, b) in zip(batch.episodes, pairwise(batch.trajectory_offsets), strict=True):
            if name in known and len(known[name]) == b - a:
                batch.ref_logprobs[a:b] = known[name]
            else:
                missing += 1
        return bool(update.ranks.max(missing) > 0)

    def asked_reference(self, update: ModuleUpdate) -> None:
        """The reference has said what it gives all tokens; later a pair may come to another learner."""
        if self.of_files:
            batch, bounds = update.batch, pairwise(update.batch.trajectory_offsets)
            own = {name: batch.ref_logprobs[a:b].copy() for name, (a, b) in zip(batch.episodes, bounds, strict=True)}
            for said in update.ranks.gathered(own):
                update.reference_known.update(said)

    def forward_flags(self, update: ModuleUpdate) -> dict[str, Any]:
        return {"temperature": update.settings.temperature, "with_values": False, "with_entropy": False}

    def record(
        self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor], inputs: Mapping[str, Any]
    ) -> None:
        if pack.num_actions:
            now = out["logprobs"].detach().float().cpu().numpy()
            self._recorded.append((pack.token_slot, now))
            if update.meter.first_minibatch and not self.of_files:
                update.batch.put(pack, old_logprobs=now)

    def prepare(self, update: ModuleUpdate) -> None:
        """What each token's log-probability counts in the loss of the minibatch that was recorded."""
        batch = update.batch
        slots, logprobs = map(np.concatenate, zip(_NOTHING, *self._recorded, strict=True))
        self._recorded = []
        numbers, which = np.unique(batch.trajectory[slots], return_inverse=True)
        sides, chosen = self._sums(batch, slots, logprobs, which)
        policy = sides.policy.requires_grad_()
        good, bad = _in_pairs(chosen, batch.group[numbers])
        pairs = max(1.0, float(update.ranks.sum([len(good)])[0]))
        loss = self.of_sides(self.beta, sides.at(good), sides.at(bad)).sum() / pairs
        if self.sft_weight:
            w = sides.at(good)
            loss = loss - self.sft_weight * (w.policy / w.tokens).sum() / pairs
        (derivative,) = torch.autograd.grad(loss, policy)
        batch.loss_weights[slots] = derivative.numpy()[which]
        with torch.no_grad():
            self._log(update, float(loss), sides, good, bad)

    def _sums(
        self, batch: TokenBatch, slots: np.ndarray, logprobs: np.ndarray, which: np.ndarray
    ) -> tuple[Sides, torch.Tensor]:
        """Of ``N`` trajectories, and bool ``[N]`` whether each is chosen; ``which`` of them each token is of."""

        def summed(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.bincount(which, values)).double()  # Of nothing it gives whole numbers.

        policy, tokens = summed(logprobs), summed(np.ones(len(slots)))
        asks = self.of_sides.asks_reference
        reference = summed(batch.ref_logprobs[slots]) if asks else torch.zeros_like(policy)
        return Sides(policy, reference, tokens), summed(batch.rewards[slots]) > 0

    def _log(self, update: ModuleUpdate, loss: float, sides: Sides, good: Any, bad: Any) -> None:
        """Means over pairs, so weighted that the meter's mean over tokens is that."""
        size = 1.0 if update.minibatch is None else update.minibatch.tokens
        better, worse = sides.at(good), sides.at(bad)
        gained = [side.gain / side.tokens if self.of_sides.by_token else side.gain for side in (better, worse)]
        own = [float(self.beta * each.sum()) for each in gained]
        own += [float((side.policy / side.tokens).sum()) for side in (better, worse)]
        *sums, pairs = update.ranks.sum([*own, len(good)]).tolist()
        means = [each / max(pairs, 1) for each in sums]
        names = dict(zip(PREFERENCE_NAMES[2:], means, strict=True))
        names["reward_margin"] = means[0] - means[1]
        found = {name: size / update.ranks.world * value for name, value in names.items()}
        right = float((0.5 * (1 + torch.sign(gained[0] - gained[1]))).sum())
        found["reward_accuracy"] = size * right / max(pairs, 1)
        update.meter.add(found | {"policy_loss": size * loss, "total_loss": size * loss})

    def loss(self, update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]) -> Loss:
        """Its gradient is that of the minibatch's loss; the loss itself is in the figures since :meth:`prepare`."""
        size = 1.0 if update.minibatch is None else update.minibatch.tokens
        counts = update.column(pack, "loss_weights", like=out["logprobs"])
        return (counts * out["logprobs"]).sum() * size, {"count": float(pack.num_actions)}

    def trained_parts(self, update: ModuleUpdate) -> Collection[str]:
        return (POLICY,)


def _in_pairs(chosen: torch.Tensor, group: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """The chosen and the rejected trajectory of each group, int64 ``[pairs]``. Raises: ValueError: it is no pair."""
    order = np.lexsort((~chosen.numpy(), group))
    first, second = order[::2], order[1::2]
    if len(order) % 2 or (group[first] != group[second]).any() or not chosen[first].all() or chosen[second].any():
        raise ValueError("a group is no pair: it needs one trajectory with a positive reward and one with a negative")
    return torch.from_numpy(first.copy()), torch.from_numpy(second.copy())


_NOTHING = np.zeros(0, np.int64), np.zeros(0, np.float32)
"""What is recorded of no tokens."""
