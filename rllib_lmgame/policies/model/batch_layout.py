"""How the rows of a micro-batch lie in one forward pass, for models that packing does not suit.

Side by side they are a batch ``[rows, longest]``, each filled up at its end: a causal model reads no token from what
stands behind it. So rows of models with convolutions, recurrences or an attention of their own share a pass, too.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from rllib_lmgame.policies.model.attention import PackedRows


class Layout(Enum):
    PACKED = "packed"
    BATCHED = "rows side by side"
    ALONE = "one row a pass"


class BatchedRows(PackedRows):
    """Rows of a batch side by side. Enter it like :class:`PackedRows`; flash attention gets no row boundaries.

    ``cu_seqlens``: int32 ``[rows + 1]``, where each row begins in the arrays of the batch, which have them end to end.
    """

    def __init__(self, cu_seqlens: torch.Tensor) -> None:
        super().__init__(cu_seqlens)
        self.flash_arguments = {}
        starts = cu_seqlens[:-1].to(torch.int64)
        lengths = cu_seqlens[1:] - starts
        self._shape = len(lengths), int(lengths.max())
        row = torch.arange(len(lengths), device=cu_seqlens.device)
        self._moved = (row * self._shape[1] - starts).repeat_interleave(lengths)

    def arguments(self, input_ids: torch.Tensor) -> dict[str, Any]:
        """What a backbone is called with for int64 ``[tokens]``; it counts positions itself."""
        ids = input_ids.new_zeros(self._shape)
        ids.view(-1)[self.place(torch.arange(len(input_ids), device=input_ids.device))] = input_ids
        return {"input_ids": ids, "use_cache": False}

    def place(self, index: torch.Tensor) -> torch.Tensor:
        """Where tokens (int64, end to end) stand in the flattened batch."""
        return index + self._moved[index]
