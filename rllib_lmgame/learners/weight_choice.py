"""Which of a policy's weights are sent to engines or written to files: decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from rllib_lmgame.learners.engines.ema import WeightAverage


class WeightUse(Enum):
    """What weights are wanted for."""

    TRAINING = "training"
    """Playing the episodes that are trained on."""
    EVALUATION = "evaluation"
    """Playing the episodes of an evaluation."""
    EXPORT = "export"
    """The Hugging Face directory of a checkpoint."""


def takes_average(use: WeightUse, averaging: bool) -> bool:
    """Whether ``use`` takes the running average, where there is one (``averaging``), in place of the
    weights that are trained.
    """
    return averaging and use is not WeightUse.TRAINING


def chosen_weights(
    use: WeightUse, trained: Mapping[str, torch.Tensor], average: WeightAverage | None
) -> dict[str, torch.Tensor]:
    """The complete tensors for ``use``, by their names in memory and in the numerics of those that are trained.

    Args:
        use: What they are for.
        trained: The weights in training.
        average: Their running average, which lies in main memory; ``None`` before the first update, and where nothing
            is averaged.
    """
    if average is None or not takes_average(use, averaging=True):
        return dict(trained)
    return {name: tensor.to(trained[name].dtype) for name, tensor in average.tensors.items()}
