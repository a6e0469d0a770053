"""A learner's process: its place in the group of all learners, and the memory it has freed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 1 << 25
"""Bytes of the largest tensor whose freed memory is kept; the most that every version of the C library accepts."""
_NEVER_TRIM = (1 << 31) - 1
_MOST_KEPT = 256 << 20
"""Bytes of freed memory that a process keeps between two updates."""


class OtherLearnerError(RuntimeError):
    """Another learner failed in what all of them do together; that one's error says why."""


class ProcessGroup:
    """Sums and maxima over all learners. With one learner every call is the identity and no group is needed.

    ``device`` is where tensors must lie to be reduced (NCCL reduces on GPUs only).
    """

    def __init__(self, world: int = 1, rank: int = 0, device: torch.device | str = "cpu") -> None:
        self.world = world
        self.rank = rank
        self.device = torch.device(device)

    @classmethod
    def current(cls, num_learners: int, device: torch.device | str) -> ProcessGroup:
        """Those of the process group that RLlib has set up for more than one learner."""
        if num_learners > 1:
            return cls(dist.get_world_size(), dist.get_rank(), device)
        return cls(device=device)

    def sum(self, values: Any) -> np.ndarray:
        """Element-wise sum over learners, float64, in the shape of ``values``."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Any) -> np.ndarray:
        """Element-wise maximum over learners, float64, in the shape of ``values``."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def gathered(self, part: Any) -> list[Any]:
        """What each learner has."""
        if self.world == 1:
            return [part]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, part)
        return found

    def union(self, names: Iterable[str]) -> list[str]:
        return sorted({name for part in self.gathered(list(names)) for name in part})

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over learners; every learner must have gradients for the same parameters."""
        if self.world == 1:
            return
        grads = [p.grad for p in parameters if p.grad is not None]
        for dtype in sorted({g.dtype for g in grads}, key=str):
            same = [g for g in grads if g.dtype == dtype]
            flat = torch.cat([g.reshape(-1) for g in same])
            dist.all_reduce(flat)
            for grad, part in zip(same, flat.split([g.numel() for g in same]), strict=True):
                grad.copy_(part.view_as(grad))

    @torch.no_grad()
    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor.data, src=0)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """A part in which no learner waits for another: all are through it after it, or all raise.

        Raises: OtherLearnerError: It failed elsewhere.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        failed = self.sum(failure is not None)
        if failure is not None:
            raise failure
        if failed:
            raise OtherLearnerError(f"{int(failed)} of {self.world} learners failed")

    def _reduce(self, values: Any, op: Any) -> np.ndarray:
        array = np.asarray(values, dtype=np.float64)
        if self.world == 1:
            return array
        tensor = torch.from_numpy(array.reshape(-1).copy()).to(self.device)
        dist.all_reduce(tensor, op=op)
        return tensor.cpu().numpy().reshape(array.shape)


def keep_freed_memory() -> bool:
    """Let the C library keep the memory of freed small tensors for the next pass; whether it is one that can (glibc).

    Getting each page anew from the kernel costs up to a sixth of an update of a tiny model. What is kept at the end of
    an update is bounded by :func:`give_back_memory`.
    """
    mallopt = _c_function("mallopt")
    kept = ((_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, _NEVER_TRIM))
    return mallopt is not None and all(mallopt(option, value) for option, value in kept)


def give_back_memory(keep: int = _MOST_KEPT) -> None:
    """Give freed memory back to the system if the process keeps more than ``keep`` bytes of it, as far as is known."""
    trim, mallinfo2 = _c_function("malloc_trim"), _c_function("mallinfo2")
    if mallinfo2 is not None:
        mallinfo2.restype = _MallInfo
    if trim is not None and (mallinfo2 is None or mallinfo2().fordblks > keep):
        trim(0)


class _MallInfo(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def _c_function(name: str) -> Any:
    """A function of the C library, or ``None`` where it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def give_back_gpu_memory(device: torch.device) -> None:
    """Let others on the GPU have the memory that PyTorch keeps for its next tensors."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
