"""A learner's tensors in host memory while the engines on its GPU play (``training.offload_during_rollout``).

Storages are emptied, and later filled with the same bytes, so that every view of a tensor stays what it is: optimizers
and DeepSpeed keep many. In between nothing may read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


class HostStates:
    """Host memory for the tensors of one device, as much as they took at most; page-locked beside a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._kind = device.type
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._away: list[tuple[torch.Tensor, torch.Tensor]] = []

    def offload(self, *held: Any) -> None:
        """Move the tensors in ``held`` that lie on the device, unless some are away already."""
        found = (tensor.untyped_storage() for tensor in tensors_in(held) if tensor.device.type == self._kind)
        storages = {each._cdata: each for each in found if each.resizable()}  # Not those of mapped files.
        whole = [torch.empty(0, dtype=torch.uint8, device=each.device).set_(each) for each in storages.values()]
        sizes, on_gpu = list(map(len, whole)), self._kind == "cuda"
        if self._away:
            return
        if sum(sizes) > len(self._memory):
            self._memory = self._memory.new_empty(0)
            if on_gpu:
                torch.accelerator.empty_host_cache()  # PyTorch would keep what was too small.
            self._memory = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=on_gpu)
        self._away = list(zip(whole, self._memory[: sum(sizes)].split(sizes), strict=True))
        for tensor, part in self._away:
            part.copy_(tensor)
            tensor.untyped_storage().resize_(0)
        if on_gpu:
            torch.cuda.empty_cache()

    def reload(self) -> None:
        """Move them back."""
        for tensor, part in self._away:
            tensor.untyped_storage().resize_(len(part))
            tensor.copy_(part)
        self._away = []


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Of modules, mappings and sequences, with the shares of parameters that ZeRO 3 divides."""
    if isinstance(value, torch.Tensor):
        parts, *_ = getattr(value, "__tensor_flatten__", lambda: [()])()
        if not parts:  # 8-bit moments have them, and no memory of their own.
            yield value
        value = [getattr(value, name, None) for name in (*parts, "ds_tensor")]
    elif isinstance(value, torch.nn.Module):
        value = [*value.parameters(), *value.buffers()]
    elif isinstance(value, Mapping):
        value = list(value.values())
    for each in value if isinstance(value, list | tuple) else ():
        yield from tensors_in(each)
