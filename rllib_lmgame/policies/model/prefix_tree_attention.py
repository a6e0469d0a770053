"""Attention over rows that share prefixes: keys and values of a shared prefix are stored once.

A query sees its own row up to itself and all rows before it on the way to the root. Two ways lead there:

* On CPUs without windows, caps and sinks the attention to each row is a call of its own, and the results are merged by
  their log-sum-exp, as ring attention does (Liu et al. 2023). Nothing is repeated, and no scores are written out.
* Elsewhere keys and values of the rows before are repeated in front of each row's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

Kernel = Callable[..., Tensor]
"""Attention of ``[rows, heads, queries, head_dim]`` given scaling and a bool mask ``[queries, keys]`` (or causal)."""


class Span(NamedTuple):
    """Neighbouring rows of one length with as many tokens before them.

    ``keys``: int64 ``[rows * (context + length)]``, those of each row with what is before it.
    """

    rows: int
    length: int
    context: int
    keys: Tensor


class SharedKeys(NamedTuple):
    """A row that others continue, and the tokens of these, int64 ``[n]``."""

    keys: slice
    queries: Tensor


class PrefixTree:
    """Which rows of a pack continue which: ``bounds`` where they begin and end, ``parents`` the row before or -1."""

    def __init__(self, bounds: Sequence[int], parents: Sequence[int], device: torch.device) -> None:
        self.bounds, self.parents, self.device = bounds, parents, device
        self.lengths = [end - begin for begin, end in pairwise(bounds)]
        self.repeats = False
        """Whether any attention has repeated keys and values."""

    @cached_property
    def _before(self) -> list[list[int]]:
        """The rows before each, outermost first."""
        found: list[list[int]] = []
        for parent in self.parents:
            above: list[int] = []
            while parent >= 0:
                above.append(parent)
                parent = self.parents[parent]
            found.append(above[::-1])
        return found

    @cached_property
    def contexts(self) -> list[int]:
        """Tokens before each row."""
        return [sum(self.lengths[row] for row in above) for above in self._before]

    @cached_property
    def whole_lengths(self) -> list[int]:
        """Tokens of each row and before it."""
        return list(map(int.__add__, self.contexts, self.lengths))

    @cached_property
    def longest(self) -> int:
        return max(self.whole_lengths)

    @cached_property
    def shared(self) -> list[SharedKeys]:
        readers: dict[int, list[Tensor]] = {}
        for row, above in enumerate(self._before):
            for other in above:
                readers.setdefault(other, []).append(self._tokens(row))
        return [SharedKeys(slice(*self.bounds[row : row + 2]), torch.cat(found)) for row, found in readers.items()]

    @cached_property
    def spans(self) -> list[Span]:
        spans, row = [], 0
        for (length, context), some in groupby(zip(self.lengths, self.contexts, strict=True)):
            rows = len(list(some))
            spans.append(Span(rows, length, context, torch.cat([self._keys(row + i) for i in range(rows)])))
            row += rows
        return spans

    @cached_property
    def flash_keys(self) -> Tensor:
        """int64: the keys of each row with what is before it, end to end."""
        return torch.cat([span.keys for span in self.spans])

    @cached_property
    def flash_arguments(self) -> dict[str, Any]:
        """Where rows begin among :attr:`flash_keys`. Flash attention aligns the last query with the last key."""
        starts = torch.tensor([0, *self.whole_lengths], device=self.device).cumsum(0, dtype=torch.int32)
        return {"cu_seq_lens_k": starts, "max_length_k": self.longest}

    def _tokens(self, row: int) -> Tensor:
        return torch.arange(*self.bounds[row : row + 2], device=self.device)

    def _keys(self, row: int) -> Tensor:
        return torch.cat([self._tokens(other) for other in (*self._before[row], row)])


def repeated_attention(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: PrefixTree,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """``[tokens, heads, value_dim]`` of queries, keys and values ``[tokens, heads, dim]``, keys repeated."""
    tree.repeats, outputs = True, []
    parts = query.split([span.rows * span.length for span in tree.spans])
    for q, (rows, length, context, keys) in zip(parts, tree.spans, strict=True):
        q, k, v = (
            x.reshape(rows, -1, *x.shape[1:]).transpose(1, 2)
            for x in (q, key.index_select(0, keys), value.index_select(0, keys))
        )
        out = kernel(q, k, v, scaling, causal_mask(length, window, q.device, context))
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def causal_mask(length: int, window: int | None, device: torch.device, context: int = 0) -> Tensor | None:
    """bool ``[length, context + length]`` for a row with ``context`` before it.

    ``None``: causal, and no longer than the model's sliding ``window``.
    """
    if not context and (window is None or length <= window):
        return None
    keys = torch.arange(context + length, device=device)
    distance = keys[context:, None] - keys[None, :]
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


@dataclass(frozen=True)
class Part:
    """Queries that see a stretch of keys: neighbouring rows of equal length, or a row that others continue.

    Attributes:
        rows: The keys are of so many rows, and so are the queries.
        keys: Where they stand.
        queries: Where they stand: as the keys (``None``), or int64 ``[n]``.
        filled: bool ``[n]``; which queries count, if not all do.
        mask: Added to the scores; ``[rows, 1, queries, keys]``.
        causal: Query ``i`` of a row sees its first ``i + 1`` keys.
    """

    rows: int
    keys: slice
    queries: Tensor | None = None
    filled: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False

    @property
    def at(self) -> Any:
        return self.keys if self.queries is None else self.queries

    def options(self, scaling: float | None) -> dict[str, Any]:
        return {"is_causal": self.causal, "attn_mask": self.mask, "scale": scaling}

    def rowwise(self, x: Tensor) -> Tensor:
        """``[n, heads, ...]`` as ``[rows, heads, n / rows, ...]``."""
        return x.reshape(self.rows, -1, *x.shape[1:]).transpose(1, 2)


def parts_of(groups: Sequence[tuple[int, int]], tree: PrefixTree) -> list[Part]:
    """The parts of a pack whose groups of neighbouring rows are ``(rows, length)``."""
    parts, start = [], 0
    for rows, length in groups:
        parts.append(Part(rows, slice(start, start + rows * length), causal=True))
        start += rows * length
    return parts + [Part(1, keys, queries) for keys, queries in tree.shared]


def merged_attention(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scaling: float | None) -> Tensor:
    """``[queries, heads, dim]`` of queries in that shape, keys and values ``[tokens, key_heads, dim]``.

    On CPUs. Every query is in at least one part, and sees all keys of all its parts.
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    merged: Tensor = _Merged.apply(query, key, value, parts, scaling)
    return merged


_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _Merged(torch.autograd.Function):
    """With the log-sum-exp and the output of all keys, the kernel's backward of some keys gives their gradients."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scaling: float | None
    ) -> Tensor:
        exact = torch.promote_types(query.dtype, torch.float32)
        out = torch.zeros(*query.shape[:2], value.shape[-1], dtype=exact)
        total = torch.full(query.shape[:2], float("-inf"), dtype=exact)
        for part in parts:
            q, k, v = map(part.rowwise, (query[part.at], key[part.keys], value[part.keys]))
            some, lse = (x.transpose(1, 2).flatten(0, 1) for x in _forward(q, k, v, **part.options(scaling)))
            at = part.at
            if part.filled is not None:
                at, some, lse = at[part.filled], some[part.filled], lse[part.filled]
            before = total[at]
            after = torch.logaddexp(before, lse)
            out[at] = out[at] * (before - after).exp()[..., None] + some * (lse - after).exp()[..., None]
            total[at] = after
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.parts, ctx.scaling = parts, scaling
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, total = ctx.saved_tensors
        exact = total.dtype
        of_query, of_key, of_value = (torch.zeros(x.shape, dtype=exact) for x in (query, key, value))
        for part in ctx.parts:
            given, lse = gradient[part.at], total[part.at]
            if part.filled is not None:  # Others have no weight, so they get and give no gradient.
                lse = lse.masked_fill(~part.filled[:, None], float("inf"))
            inputs = (given, query[part.at], key[part.keys], value[part.keys], out[part.at], lse)
            found = _backward(*map(part.rowwise, inputs), 0.0, **part.options(ctx.scaling))
            q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in found)
            if part.queries is None:
                of_query[part.at] += q
            else:
                of_query.index_add_(0, part.queries, q.to(exact))
            of_key[part.keys] += k
            of_value[part.keys] += v
        return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype), None, None
