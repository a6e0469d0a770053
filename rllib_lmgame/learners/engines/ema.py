"""A running average of a policy's weights over iterations, for evaluation and export."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class WeightAverage:
    """``average = decay * average + (1 - decay) * weights`` after every update, in float32; begins as a copy of the
    first weights.

    Args:
        decay: Between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.tensors: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def update(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take in the weights after an update."""
        if not self.tensors:
            self.tensors = {name: tensor.detach().float().cpu().clone() for name, tensor in weights.items()}
            return
        for name, tensor in weights.items():
            self.tensors[name].lerp_(tensor.detach().float().cpu(), 1.0 - self.decay)
