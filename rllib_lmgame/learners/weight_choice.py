"""Which of a policy's weights are sent to engines or written to files: decided here and nowhere else."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


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
