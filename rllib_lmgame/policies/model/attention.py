"""Attention over packed rows.

Rows are laid end to end in one sequence, sorted by length, so that rows of equal length are neighbours. Every run
of equal lengths is one causal attention call on a ``[rows, heads, length, head_dim]`` view: nothing crosses rows
and no padding is computed. Registered with Transformers' attention interface, so any model that supports
attention back ends runs on it without a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from rllib_lmgame.errors import ConfigError, MissingDependencyError

PACKED = "lmgame_packed"
PACKED_EAGER = "lmgame_packed_eager"
FLASH = "flash_attention_2"

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


def attention_arguments(cu_seqlens: torch.Tensor, implementation: str) -> dict[str, Any]:
    """Keyword arguments a model's forward passes down to its attention function.

    Args:
        cu_seqlens: int32 ``[rows + 1]``, where each row begins.
        implementation: :data:`PACKED`, :data:`PACKED_EAGER` or :data:`FLASH`.
    """
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    if implementation == FLASH:
        longest = max(lengths)
        cu_seqlens = cu_seqlens.to(torch.int32)
        return {
            "cu_seq_lens_q": cu_seqlens,
            "cu_seq_lens_k": cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    return {"row_groups": row_groups(lengths)}


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    row_groups: list[RowGroup] | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each row, by ``scaled_dot_product_attention``.

    Args:
        query: ``[1, heads, tokens, head_dim]``.
        key: ``[1, key_heads, tokens, head_dim]``.
        value: Same shape as ``key``.
        row_groups: See :func:`row_groups`; without it the whole sequence is one row.

    Returns:
        ``[1, tokens, heads, head_dim]`` and ``None``.

    Raises:
        ConfigError: if the model asks for score capping or attention sinks.
    """
    return _attend(_sdpa, query, key, value, scaling, row_groups, sliding_window, kwargs), None


def packed_attention_eager(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    row_groups: list[RowGroup] | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """:func:`packed_attention` with the scores written out, for debugging."""
    return _attend(_eager, query, key, value, scaling, row_groups, sliding_window, kwargs), None


def _attend(kernel, query, key, value, scaling, row_groups, sliding_window, kwargs) -> torch.Tensor:  # type: ignore[no-untyped-def]
    for unsupported in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(unsupported) is not None:
            raise ConfigError(
                "language_model.attn_implementation",
                f"the model needs `{unsupported}`, which only flash_attention_2 offers for packed rows",
            )
    heads, tokens, head_dim = query.shape[1:]
    groups = row_groups or [(1, tokens)]
    sizes = [rows * length for rows, length in groups]
    # Splitting once has a backward that concatenates; a slice per group would have one that fills whole-size zeros.
    parts = zip(*(x[0].transpose(0, 1).split(sizes) for x in (query, key, value)), groups, strict=True)
    outputs = []
    for q, k, v, (rows, length) in parts:
        q, k, v = (x.reshape(rows, length, x.shape[1], x.shape[2]).transpose(1, 2) for x in (q, k, v))
        out = kernel(q, k, v, scaling, _window_mask(length, sliding_window, q.device))
        outputs.append(out.transpose(1, 2).reshape(rows * length, heads, head_dim))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unsqueeze(0)


def _window_mask(length: int, sliding_window: int | None, device: torch.device) -> torch.Tensor | None:
    """bool ``[length, length]`` for a row longer than the model's sliding window, otherwise ``None`` (causal)."""
    if sliding_window is None or length <= sliding_window:
        return None
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < sliding_window)


def repeat_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Key or value heads ``[rows, key_heads, length, head_dim]`` repeated for grouped queries."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, mask: torch.Tensor | None
) -> torch.Tensor:
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling)


def _eager(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, mask: torch.Tensor | None
) -> torch.Tensor:
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    length = q.shape[2]
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-1, -2) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1, dtype=torch.float32).to(q.dtype)
    return weights @ v


def resolve_implementation(choice: str, dtype: torch.dtype, on_gpu: bool) -> str:
    """Name of the attention function for ``language_model.attn_implementation``.

    Raises:
        MissingDependencyError: if flash attention is asked for and not installed.
    """
    register()
    if choice == FLASH and not _flash_installed():
        raise MissingDependencyError(
            "language_model.attn_implementation: flash_attention_2 needs flash-attn; install the extra "
            "`rllib-lmgame[gpu]` or set `auto`"
        )
    if choice == FLASH or (
        choice == "auto" and on_gpu and dtype in (torch.float16, torch.bfloat16) and _flash_installed()
    ):
        return FLASH
    return PACKED_EAGER if choice == "eager" else PACKED


def _flash_installed() -> bool:
    from transformers.utils import is_flash_attn_2_available

    return bool(is_flash_attn_2_available())


def register() -> None:
    """Make the packed functions known to Transformers; may be called again."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)
    AttentionInterface.register(PACKED_EAGER, packed_attention_eager)
