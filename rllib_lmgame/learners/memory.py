"""What becomes of memory a learner has freed."""

from __future__ import annotations

import ctypes
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_FROM_HEAP = (1 << 30, 1 << 25)
"""Bytes; the first is what is wanted, the second the most that older versions accept."""
_NEVER_TRIM = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next pass instead of giving it back to the system.

    An update allocates and frees the same activations over and over; getting each page anew from the kernel costs up to a sixth
    of an update. The process then stays as large as its largest update.

    Returns:
        Whether the C library is one that can be told so (glibc).
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return any(mallopt(_M_MMAP_THRESHOLD, size) for size in _LARGEST_FROM_HEAP) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM))


def give_back_gpu_memory(device: torch.device) -> None:
    """Let others on the GPU have the memory that PyTorch keeps for its next tensors."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
