"""Key-value cache with one slot per sequence, for batches whose rows are at different positions."""

from __future__ import annotations

from typing import Any

import torch


class SlotCache:
    """Rows of a batch read and write their own slots at their own positions; nothing is padded on the left.

    It is a Hugging Face model's ``past_key_values``, whose layers call :meth:`update`. Before each forward pass
    :meth:`aim` says which slots the rows are and where their tokens go. Buffers grow as needed.
    """

    is_compileable = False

    def __init__(self) -> None:
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._slots = torch.zeros(0, dtype=torch.long)
        self._positions = torch.zeros(0, 0, dtype=torch.long)
        self._length = 0

    def aim(self, slots: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        """Choose slots ``[rows]`` and positions ``[rows, queries]``; ``length`` positions of each slot are read."""
        self._slots, self._positions, self._length = slots, positions, length

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store ``[rows, heads, queries, width]``; returns the slots' content ``[rows, heads, length, width]``."""
        return self._put(self._keys, layer_idx, key), self._put(self._values, layer_idx, value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions read; models ask for it only where they are given no positions."""
        return self._length

    def clear(self) -> None:
        self._keys.clear()
        self._values.clear()

    def _put(self, buffers: dict[int, torch.Tensor], layer: int, new: torch.Tensor) -> torch.Tensor:
        buffer = self._grown(buffers.get(layer), new)
        buffers[layer] = buffer
        buffer[self._slots[:, None], self._positions] = new.transpose(1, 2)
        return buffer[self._slots, : self._length].transpose(1, 2)

    def _grown(self, buffer: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        slots = int(self._slots.max()) + 1
        length = max(self._length, int(self._positions.max()) + 1)
        _, heads, _, width = new.shape
        if buffer is None:
            return new.new_zeros(slots, length, heads, width)
        if slots <= buffer.shape[0] and length <= buffer.shape[1]:
            return buffer
        grown = new.new_zeros(_room(slots, buffer.shape[0]), _room(length, buffer.shape[1]), heads, width)
        grown[: buffer.shape[0], : buffer.shape[1]] = buffer
        return grown


def _room(needed: int, have: int) -> int:
    return have if needed <= have else max(needed, have + have // 2)
