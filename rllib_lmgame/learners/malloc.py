"""What becomes of memory a learner has freed."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 1 << 25
"""Bytes of the largest tensor whose freed memory is kept; the most that every version of the C library accepts."""
_NEVER_TRIM = (1 << 31) - 1
_MOST_KEPT = 256 << 20
"""Bytes of freed memory that a process keeps between two updates."""


def keep_freed_memory() -> bool:
    """Let the C library keep the memory of freed small tensors for the next pass; whether it is one that can (glibc).

    An update frees the same activations over and over; getting each page anew from the kernel costs up to a sixth of an
    update of a tiny model. Large tensors are given back when they are freed, and what is kept at the end of an update
    is bounded by :func:`give_back_memory`.
    """
    mallopt = _c_function("mallopt")
    return (
        mallopt is not None
        and bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT))
        and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM))
    )


def give_back_memory(keep: int = _MOST_KEPT) -> None:
    """Give freed memory back to the system if the process keeps more than ``keep`` bytes of it."""
    trim = _c_function("malloc_trim")
    if trim is not None and _kept_bytes() > keep:
        trim(0)


def _kept_bytes() -> int:
    """Freed memory that the C library holds; all there could be if it does not say."""
    mallinfo2 = _c_function("mallinfo2")
    if mallinfo2 is None:
        return sys.maxsize
    mallinfo2.restype = _MallInfo
    return int(mallinfo2().fordblks)


_MALLINFO2 = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2.split())


def _c_function(name: str) -> Any:
    """A function of the C library, or ``None`` where it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def give_back_gpu_memory(device: torch.device) -> None:
    """Let others on the GPU have the memory that PyTorch keeps for its next tensors."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
