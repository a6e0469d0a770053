"""What ``dtype: auto`` computes in: the one place that decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rllib_lmgame.base.threads import AUTO, FEW_PARAMETERS


@cache
def has_bfloat16_units() -> bool:
    """Whether this processor multiplies matrices in bfloat16 (AVX512-BF16, AMX)."""
    import torch

    return any(torch.cpu.get_capabilities().get(units, False) for units in ("avx512_bf16", "amx_bf16"))


def computed_in(dtype: str, parameters: Callable[[], float], on_gpu: bool = False) -> str:
    """The numerics of matrix products: ``auto`` is bfloat16 on GPUs, and on processors that have units for it."""
    if dtype != AUTO:
        return dtype
    # A model of few parameters gains little there, and its log-probabilities stay exact.
    return "bfloat16" if on_gpu or (has_bfloat16_units() and parameters() >= FEW_PARAMETERS) else "float32"
