"""Which action tokens of an update are learned from, and how much each of them counts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from rllib_lmgame.learners.data.batching import PackedBatch
from rllib_lmgame.learners.objectives.aggregation import token_weights
from rllib_lmgame.learners.objectives.base import ModuleUpdate
from rllib_lmgame.learners.objectives.importance import importance_metrics, importance_weights
from rllib_lmgame.learners.objectives.policy_losses import TURN, resolve_policy_loss


def weigh_tokens(update: ModuleUpdate) -> None:
    """Fill ``sequence``, ``loss_weights`` and ``importance_weights`` of a batch with ``old_logprobs``, and the metrics
    of the last. All learners take part.
    """
    ppo, batch, found = update.settings.ppo, update.batch, None
    if batch is not None:
        chosen = resolve_policy_loss(ppo.policy_loss)
        batch.sequence = batch.stretches(chosen.sequence or TURN)
        batch.loss_weights = token_weights(batch, ppo.loss_aggregation, ppo.loss_length)
        found = importance_weights(batch, ppo, to_sampler=chosen.to_sampler)
        batch.importance_weights = found.weights.astype(np.float32)
    update.meter.before |= importance_metrics(found, batch, update.ranks)


def learned_from(
    update: ModuleUpdate, pack: PackedBatch, out: Mapping[str, torch.Tensor]
) -> tuple[PackedBatch, Mapping[str, torch.Tensor]]:
    """The action tokens of a micro-batch that are learned from, with what the forward pass says of them."""
    if update.batch is None:
        return pack, out
    keep = update.batch.kept[pack.token_slot]
    if keep.all():
        return pack, out
    chosen = torch.from_numpy(keep).to(out["logprobs"].device)
    return pack.only(keep), {name: tensor[chosen] for name, tensor in out.items() if name != "bootstrap_values"}
