"""Compute the last layer only at positions that predict an action token.

The others matter there as keys and values only: no queries, attention or feed-forward pass. Results and gradients are
the same; with three or four layers and replies shorter than observations it saves a fifth of an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rllib_lmgame.policies.model.attention import PackedRows, RowGroup, current_rows, repeat_heads
from rllib_lmgame.policies.model.prefix_tree_attention import Part, merged_attention

_LAYERS = frozenset({"Qwen2DecoderLayer", "Qwen3DecoderLayer", "LlamaDecoderLayer", "MistralDecoderLayer"})
"""Pre-norm layers of projections, rotary embedding and feed-forward, which :func:`_forward` repeats."""


@dataclass(frozen=True)
class Selection:
    """Which positions of a pack are read, and how they lie in its groups of equal-length rows.

    Attributes:
        positions: int64 ``[S]``, ascending.
        queries: Per group int64 ``[rows, queries]``, indices into ``positions``; short rows end in ignored ones.
        filled: Per group bool ``[rows, queries]``; which are not ignored.
        masks: Per group bool ``[rows, 1, queries, length]``, the keys of its row that each query may see.
    """

    positions: Tensor
    queries: list[Tensor]
    filled: list[Tensor]
    masks: list[Tensor]

    @cached_property
    def outputs(self) -> Tensor:
        """int64 ``[S]``; where each position's result stands among all groups' queries, ignored ones included."""
        return torch.cat([filled.reshape(-1) for filled in self.filled]).nonzero().squeeze(-1)

    def parts(self, rows: PackedRows, dtype: torch.dtype) -> list[Part]:
        """What the queries see where rows continue others."""
        assert rows.prefix_tree is not None
        parts = []
        for part, queries, filled, mask in zip(rows.parts, self.queries, self.filled, self.masks, strict=False):
            if queries.shape[1]:
                added = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf"))
                parts.append(Part(part.rows, part.keys, queries.reshape(-1), filled.reshape(-1), added))
        place = torch.full((rows.prefix_tree.bounds[-1],), -1)
        place[self.positions] = torch.arange(len(self.positions))
        for keys, tokens in rows.prefix_tree.shared:
            seeing = place[tokens]
            seeing = seeing[seeing >= 0]
            if len(seeing):
                parts.append(Part(1, keys, seeing))
        return parts


def select(positions: Tensor, cu_seqlens: Tensor, groups: Sequence[RowGroup]) -> Selection:
    """Work out a :class:`Selection` for ascending int64 ``[S]`` positions; ``cu_seqlens``: int32 ``[rows + 1]``."""
    device = positions.device
    starts = cu_seqlens[:-1].to(torch.int64)
    first = torch.searchsorted(positions, cu_seqlens.to(torch.int64))
    counts = first.diff()
    queries, filled, masks, row = [], [], [], 0
    for rows, length in groups:
        some = slice(row, row + rows)
        most = int(counts[some].max())
        slot = torch.arange(most, device=device)
        valid = slot[None] < counts[some, None]
        index = torch.where(valid, first[:-1][some, None] + slot, 0)
        in_row = torch.where(valid, positions[index] - starts[some, None], 0)
        queries.append(index)
        masks.append((torch.arange(length, device=device) <= in_row[:, :, None])[:, None])
        filled.append(valid)
        row += rows
    return Selection(positions, queries, filled, masks)


def prunable(backbone: nn.Module) -> bool:
    """Whether :func:`prune_last_layer` knows the layers of this backbone."""
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers) or type(layers[-1]).__name__ not in _LAYERS:
        return False
    attention = layers[-1].self_attn
    # Some models give each layer its window, Mistral reads the configuration.
    return getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None)) is None


def prune_last_layer(backbone: nn.Module) -> None:
    """Let the last layer take a ``selection`` argument; without it, it works as before."""
    layer = backbone.layers[-1]
    layer.forward = MethodType(_forward, layer)


def _forward(layer: Any, hidden_states: Tensor, selection: Selection | None = None, **kwargs: Any) -> Tensor:
    """The layer's output ``[1, S, width]`` at the selected positions of ``hidden_states`` ``[1, T, width]``."""
    if selection is None:
        return type(layer).forward(layer, hidden_states, **kwargs)
    rows = current_rows()
    assert rows is not None, "a selection is of a pack"
    residual = hidden_states.index_select(1, selection.positions)
    hidden = residual + _attention(
        layer.self_attn, layer.input_layernorm(hidden_states), selection, kwargs["position_embeddings"], rows
    )
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def _attention(
    attention: Any, hidden: Tensor, selection: Selection, rotation: tuple[Tensor, Tensor], rows: PackedRows
) -> Tensor:
    cos, sin = rotation
    shape = (hidden.shape[1], -1, attention.head_dim)
    query = attention.q_proj(hidden.index_select(1, selection.positions)).view(len(selection.positions), *shape[1:])
    key, value = attention.k_proj(hidden).view(shape), attention.v_proj(hidden).view(shape)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    query = _rotate(query, cos[0].index_select(0, selection.positions), sin[0].index_select(0, selection.positions))
    key = _rotate(key, cos[0], sin[0])
    heads, groups = query.shape[1], rows.groups
    if rows.prefix_tree is not None:
        parts = selection.parts(rows, query.dtype)
        out = merged_attention(query, key, value, parts, attention.scaling).flatten(1)
        return attention.o_proj(out[None])
    sizes = [count * length for count, length in groups]
    outputs = []
    for k, v, (count, length), index, mask in zip(
        key.split(sizes), value.split(sizes), groups, selection.queries, selection.masks, strict=True
    ):
        if index.shape[1] == 0:
            continue
        q = query.index_select(0, index.reshape(-1)).view(count, -1, heads, attention.head_dim).transpose(1, 2)
        k, v = (repeat_heads(x.reshape(count, length, -1, attention.head_dim).transpose(1, 2), heads) for x in (k, v))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=attention.scaling)
        outputs.append(out.transpose(1, 2).reshape(-1, heads * attention.head_dim))
    return attention.o_proj(torch.cat(outputs).index_select(0, selection.outputs)[None])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of ``[n, heads, head_dim]``, halves of a head paired."""
    low, high = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-high, low), dim=-1) * sin[:, None]
