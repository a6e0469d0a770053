"""Attention over packed rows.

Rows lie end to end in one sequence, sorted by length. Each run of equal lengths is one causal attention call on a
``[rows, heads, length, head_dim]`` view: nothing crosses rows and no padding is computed. On GPUs, in half precision,
one kernel takes rows of all lengths: flash-attn's where it is installed, else PyTorch's ``varlen_attn``. They are
registered with Transformers' attention interface, so models that support attention back ends run on them unchanged.
Where packing does not suit a model, rows lie side by side (:class:`BatchedRows`).

Rows that continue others see these too (:mod:`~rllib_lmgame.policies.model.prefix_tree_attention`).

Where rows begin reaches it beside the model (:class:`PackedRows`): some layers hand on no arguments they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from enum import Enum
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.policies.model.prefix_tree_attention import (
    Part,
    PrefixTree,
    causal_mask,
    merged_attention,
    parts_of,
    repeated_attention,
)

PACKED = "lmgame_packed"
PACKED_VARLEN = "lmgame_packed_varlen"
FLASH = "flash_attention_2"

MOST_VARLEN_HEAD = 256
"""Entries of a head that PyTorch's ``varlen_attn`` takes; a multiple of 8."""

RowGroup = tuple[int, int]
"""Rows in the group and their length."""


def row_groups(lengths: Sequence[int]) -> list[RowGroup]:
    """Runs of neighbouring rows of equal length as ``(rows, length)``."""
    groups: list[RowGroup] = []
    for length in lengths:
        if groups and groups[-1][1] == length:
            groups[-1] = (groups[-1][0] + 1, length)
        else:
            groups.append((1, length))
    return groups


class Layout(Enum):
    PACKED = "packed"
    BATCHED = "rows side by side"
    ALONE = "one row a pass"


class PackedRows(AbstractContextManager["PackedRows"]):
    """Where the rows of a pack begin, known to the attention of every forward pass inside ``with``.

    May be entered again, also by other threads at once (recomputed layers need it in the backward pass).
    ``cu_seqlens``: int32 ``[rows + 1]``, where each row begins. ``flash_arguments``: ``groups`` for flash attention.
    ``parents``: int64 ``[rows]``, the row that each continues or -1; rows of one length must be sorted by what is
    before them. ``prefix_tree`` is ``None`` if there are none. ``routes``: ``[tokens, layers, k]`` as the model sees
    tokens, the experts of each, chosen by the model where a number is none (and noted there with ``notes_routes``).
    """

    routes: Tensor | None = None
    notes_routes = False

    def __init__(self, cu_seqlens: Tensor, parents: Tensor | None = None) -> None:
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
        self.groups = row_groups(lengths)
        starts, longest = cu_seqlens.to(torch.int32), max(lengths)
        self.flash_arguments = {
            "cu_seq_lens_q": starts,
            "cu_seq_lens_k": starts,
            "max_length_q": longest,
            "max_length_k": longest,
        }
        self.prefix_tree: PrefixTree | None = None
        if parents is not None and len(parents):
            self.prefix_tree = PrefixTree(cu_seqlens.tolist(), parents.tolist(), cu_seqlens.device)

    @cached_property
    def parts(self) -> list[Part]:
        """What all queries see where rows continue others."""
        assert self.prefix_tree is not None
        return parts_of(self.groups, self.prefix_tree)

    def place(self, index: Tensor) -> Tensor:
        """Where tokens (int64, end to end) stand in the flattened output of a backbone."""
        return index

    def __enter__(self) -> PackedRows:
        _ENTERED.set((*_ENTERED.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _ENTERED.set(_ENTERED.get()[:-1])


_ENTERED: ContextVar[tuple[PackedRows, ...]] = ContextVar("packed_rows", default=())
"""Those that are entered, the innermost last; each thread has its own."""


class BatchedRows(PackedRows):
    """Rows of a batch side by side. Enter it like :class:`PackedRows`; flash attention gets no row boundaries.

    ``cu_seqlens``: int32 ``[rows + 1]``, where each row begins in the arrays of the batch, which have them end to end.
    """

    def __init__(self, cu_seqlens: Tensor) -> None:
        super().__init__(cu_seqlens)
        self.flash_arguments = {}
        starts = cu_seqlens[:-1].to(torch.int64)
        lengths = cu_seqlens[1:] - starts
        self._shape = len(lengths), int(lengths.max())
        row = torch.arange(len(lengths), device=cu_seqlens.device)
        self._moved = (row * self._shape[1] - starts).repeat_interleave(lengths)

    def arguments(self, input_ids: Tensor) -> dict[str, Any]:
        """What a backbone is called with for int64 ``[tokens]``; it counts positions itself."""
        ids = input_ids.new_zeros(self._shape)
        ids.view(-1)[self.place(torch.arange(len(input_ids), device=input_ids.device))] = input_ids
        return {"input_ids": ids, "use_cache": False}

    def place(self, index: Tensor) -> Tensor:
        """Where tokens (int64, end to end) stand in the flattened batch."""
        return index + self._moved[index]


def lay_out(
    input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, layout: Layout, parents: Tensor | None = None
) -> tuple[PackedRows, dict[str, Any]]:
    """The rows of a pass, within which a backbone is called, and its arguments; int64 ``[tokens]`` end to end."""
    if layout is not Layout.PACKED:
        batched = BatchedRows(cu_seqlens)
        return batched, batched.arguments(input_ids)
    arguments = {"input_ids": input_ids[None], "position_ids": position_ids[None], "use_cache": False}
    return PackedRows(cu_seqlens, parents), arguments


def current_rows() -> PackedRows | None:
    """The rows of the present pack; ``None`` for a forward pass of its own, without gradients.

    Raises: RuntimeError: with gradients outside ``with PackedRows(...)``, where a pack would be taken for one row.
    """
    rows = next(reversed(_ENTERED.get()), None)
    if rows is None and torch.is_grad_enabled():
        raise RuntimeError("packed attention knows no rows; call the model inside `with PackedRows(cu_seqlens)`")
    return rows


def rows_when_recomputed() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """``context_fn`` of :func:`torch.utils.checkpoint.checkpoint`: a recomputation has the rows of its forward pass."""
    return nullcontext(), next(reversed(_ENTERED.get()), nullcontext())


CHECKPOINTING = {"use_reentrant": False, "context_fn": rows_when_recomputed}
"""``gradient_checkpointing_kwargs`` of a model over packed rows."""


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row, by SDPA; returns ``[1, tokens, heads, value_dim]`` and ``None``.

    ``query`` is ``[1, heads, tokens, head_dim]``, ``key`` ``[1, key_heads, tokens, head_dim]``, ``value`` ``[1,
    key_heads, tokens, value_dim]``.

    Raises: ConfigError: a bias depends on positions; RuntimeError: with gradients outside of :class:`PackedRows`.
    """
    if kwargs.get("position_bias") is not None:
        raise ConfigError("language_model.model", "the model needs `position_bias`, which packed rows lack")
    kernel: Callable[..., Tensor] = _sdpa
    softcap, sinks = kwargs.get("softcap"), kwargs.get("s_aux")
    if softcap is not None or sinks is not None:
        kernel = partial(_eager, softcap=softcap, sinks=sinks)
    rows, heads = current_rows(), query.shape[1]
    if rows is not None and rows.prefix_tree is not None:
        whole = sliding_window is None or rows.prefix_tree.longest <= sliding_window
        query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
        if kernel is _sdpa and whole and query.device.type == "cpu" and value.shape[-1] == query.shape[-1]:
            out = merged_attention(query, key, value, rows.parts, scaling)
        else:
            out = repeated_attention(kernel, query, key, value, rows.prefix_tree, scaling, sliding_window)
        return out.unsqueeze(0), None
    groups = [(1, query.shape[2])] if rows is None else rows.groups
    sizes = [count * length for count, length in groups]
    # Splitting once has a backward that concatenates; a slice per group would have one that fills whole-size zeros.
    parts = zip(*(x[0].transpose(0, 1).split(sizes) for x in (query, key, value)), groups, strict=True)
    outputs = []
    for q, k, v, (count, length) in parts:
        q, k, v = (x.reshape(count, length, x.shape[1], x.shape[2]).transpose(1, 2) for x in (q, k, v))
        out = kernel(q, k, v, scaling, causal_mask(length, sliding_window, q.device))
        outputs.append(out.transpose(1, 2).reshape(count * length, heads, -1))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unsqueeze(0), None


def packed_flash_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Transformers' flash attention with row boundaries."""
    from transformers.integrations.flash_attention import flash_attention_forward

    rows = current_rows()
    packed = {} if rows is None else rows.flash_arguments
    if rows is not None and rows.prefix_tree is not None:
        rows.prefix_tree.repeats = True
        key, value = (x.index_select(2, rows.prefix_tree.flash_keys) for x in (key, value))
        packed = packed | rows.prefix_tree.flash_arguments
    return flash_attention_forward(module, query, key, value, attention_mask, **(kwargs | packed))


def packed_varlen_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """:func:`packed_attention` in one call of PyTorch's ``varlen_attn``, which computes in half precision.

    :func:`packed_attention` itself where that kernel cannot: caps, sinks, values of another width, other head sizes.
    """
    dtype, size = _half_dtype(query), query.shape[-1]
    special = any(kwargs.get(name) is not None for name in ("softcap", "s_aux", "position_bias"))
    if dtype is None or special or value.shape[-1] != size or size % 8 or size > MOST_VARLEN_HEAD:
        return packed_attention(module, query, key, value, attention_mask, **kwargs)
    from torch.nn.attention.varlen import varlen_attn

    rows = current_rows()
    q, k, v = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))
    rows = rows or PackedRows(torch.tensor([0, len(q)], device=q.device))
    at = rows.flash_arguments
    if rows.prefix_tree is not None:
        rows.prefix_tree.repeats = True
        k, v = (x.index_select(0, rows.prefix_tree.flash_keys) for x in (k, v))
        at = at | rows.prefix_tree.flash_arguments
    lengths = (at["cu_seq_lens_q"], at["cu_seq_lens_k"], at["max_length_q"], at["max_length_k"])
    # A window counts the query itself, the kernel's does not.
    window, grouped = kwargs.get("sliding_window"), k.shape[1] != q.shape[1]
    sides = (-1 if window is None or window >= at["max_length_k"] else window - 1, 0)
    out: Tensor = varlen_attn(q, k, v, *lengths, scale=kwargs.get("scaling"), window_size=sides, enable_gqa=grouped)
    return out.unsqueeze(0), None


def _half_dtype(x: Tensor) -> torch.dtype | None:
    """Half precision that attention computes in here; ``None``: another one, or not on a GPU."""
    if not x.is_cuda:
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return dtype if dtype in (torch.float16, torch.bfloat16) else None


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Key or value heads ``[rows, key_heads, length, head_dim]`` repeated for grouped queries."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scaling: float | None, mask: Tensor | None) -> Tensor:
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling)


def _eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scaling: float | None,
    mask: Tensor | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The scores written out, with what SDPA lacks: soft capping (Gemma 2), learnt sinks ``[heads]`` (gpt-oss)."""
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    length = k.shape[2]
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-1, -2) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, float("-inf")).float()
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
    return scores.softmax(dim=-1)[..., :length].to(q.dtype) @ v


def resolve_implementation(choice: str, dtype: torch.dtype, on_gpu: bool) -> str:
    """Name of the function for ``attn_implementation``. Raises: MissingDependencyError: there is no flash attention."""
    register()
    if choice == FLASH and not _flash_installed():
        extra = "install the extra `rllib-lmgame[flash]` or set `auto`"
        raise MissingDependencyError(f"language_model.attn_implementation: flash_attention_2 needs flash-attn; {extra}")
    half = choice == "auto" and on_gpu and dtype in (torch.float16, torch.bfloat16)
    if choice == FLASH or half:
        return FLASH if _flash_installed() else PACKED_VARLEN
    return PACKED


def _flash_installed() -> bool:
    from transformers.utils import is_flash_attn_2_available

    return bool(is_flash_attn_2_available())


def register() -> None:
    """Make the packed functions known to Transformers; may be called again."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)
    AttentionInterface.register(PACKED_VARLEN, packed_varlen_attention)
    AttentionInterface.register(FLASH, packed_flash_attention)
