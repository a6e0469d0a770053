"""What a check is given, and what it gives back."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TINY = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128}
LARGER = {"hidden_size": 896, "num_layers": 24, "num_heads": 14, "num_kv_heads": 2, "intermediate_size": 4864}
"""Qwen2.5-0.5B but for its vocabulary."""


@dataclass(frozen=True)
class Setting:
    """Where a check runs, and on what.

    Attributes:
        gpus: GPUs of this machine that it may use; 0: the CPU form.
        card_gib: Memory of the smallest of them.
        model: What ``language_model.model`` takes; ``None``: one with random weights, larger on GPUs.
        directory: For whatever it writes.
        shared: For what later checks find there, as a model with random weights; ``None``: as ``directory``.
    """

    gpus: int
    card_gib: float
    model: str | None
    directory: Path
    shared: Path | None = None

    @property
    def language_model(self) -> dict[str, Any]:
        """The model as a ``language_model`` section names it."""
        if self.model is not None:
            return {"model": self.model}
        return {"model": "tiny", "tiny": LARGER if self.gpus else TINY}

    @property
    def half(self) -> bool:
        """Whether engines and passes are in bfloat16."""
        return self.gpus > 0

    @property
    def gap(self) -> float:
        """What sampler and learner may differ by, in nats per token on average: rounding, and nothing more.

        On a CPU float32 and bfloat16 are 0.04 apart for :data:`LARGER` with random weights; trained ones differ less.
        """
        return (0.1 if self.model is None else 0.05) if self.half else 1e-4

    @property
    def far(self) -> float:
        """What weights must differ by at least, so that old ones are seen in place of new ones."""
        return 5 * self.gap


@dataclass(frozen=True)
class Measured:
    """One number.

    Attributes:
        low, high: What it must lie between, both included; ``None``: no bound. Without any it is only told.
    """

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it lies within its bounds; what is no finite number never does."""
        if self.low is None and self.high is None:
            return True
        above = self.low is None or self.value >= self.low
        return math.isfinite(self.value) and above and (self.high is None or self.value <= self.high)

    @property
    def bounds(self) -> str:
        """What it has to be, in words."""
        parts = [f"at least {self.low:g}"] if self.low is not None else []
        return " and ".join(parts + ([f"at most {self.high:g}"] if self.high is not None else []))

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold; a number that is not finite becomes ``null``."""
        value = self.value if math.isfinite(self.value) else None
        return {**asdict(self), "value": value, "bounds": self.bounds, "ok": self.ok}
