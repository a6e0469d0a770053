"""Whether the rows of a pack stay apart in models of an architecture, and whether a row is read as the model reads it.

No list of names can tell: convolutions and recurrences know no boundaries, some attention needs a mask that packed rows
lack, some heads do more than multiply. So it is tried, on a small random copy of the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from rllib_lmgame.policies.model.attention import PACKED, PackedRows, register
from rllib_lmgame.policies.model.layout import BatchedRows, Layout
from rllib_lmgame.policies.model.lm_head import logit_transform
from rllib_lmgame.policies.model.miniature import VOCABULARY, copy_with_attention, miniature
from rllib_lmgame.text import first_line

LENGTHS = (7, 7, 12)
"""Of the rows that are tried; as in every pack, short ones first."""
TOLERANCE = 2e-3
"""Of log-probabilities in float32. What leaks or is left out moves those of random models by tenths and more."""


class UnfitModelError(ValueError):
    """Rows of a model cannot be computed as the model itself computes them."""


class Apart(Enum):
    YES = "packed"
    NO = "rows of a pack would reach each other"
    LESS = "its attention needs more than packed rows have"
    NOT_EXCHANGED = "its attention cannot be exchanged"
    NOT_TRIED = "whether rows stay apart could not be tried"


@dataclass(frozen=True)
class Packing:
    """How rows go through a model: what trying it gave, and what was raised."""

    apart: Apart
    error: str = ""
    layout: Layout = Layout.ALONE

    @property
    def fits(self) -> bool:
        """Several end to end in a pack."""
        return self.layout is Layout.PACKED

    @property
    def reason(self) -> str:
        return "" if self.fits else f"{self.apart.value}: {self.error}" if self.error else self.apart.value


def packing_of(config: Any) -> Packing:
    """How rows go through models of ``config``; tried once a process. Raises: UnfitModelError: not even one fits."""
    key = type(config), json.dumps(config.to_dict(), sort_keys=True, default=str)
    if key not in _FOUND:
        try:
            _FOUND[key] = _tried(config)
        except UnfitModelError as error:
            _FOUND[key] = error
    found = _FOUND[key]
    if isinstance(found, UnfitModelError):
        raise found
    return found


_FOUND: dict[tuple[type, str], Packing | UnfitModelError] = {}


def backbone_of(model: Any) -> nn.Module:
    """What computes the hidden states that the head of a causal language model reads."""
    parts = (model.base_model, model.get_decoder(), getattr(model, "model", model))
    return next((part for part in parts if part is not model), model)


@torch.no_grad()
def _tried(config: Any) -> Packing:
    with torch.random.fork_rng(devices=[]):  # What is random elsewhere stays as it is.
        try:
            model = miniature(config)
        except Exception as error:  # A configuration of others fails in many ways.
            return Packing(Apart.NOT_TRIED, first_line(error))
        return _compared(model)


def _compared(model: nn.Module) -> Packing:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(1, VOCABULARY, (sum(LENGTHS),), generator=generator).split(LENGTHS)
    expected = [_logprobs(model(row[None], use_cache=False).logits[0]) for row in rows]
    shortened = _logprobs(model(rows[-1][None, :-1], use_cache=False).logits[0])
    if not _same([shortened], [expected[-1][:-1]]):
        raise UnfitModelError("its tokens see those behind them, so it is no causal language model")
    try:
        alone = [_through_backbone(model, [row], Layout.ALONE)[0] for row in rows]
    except Exception as error:
        raise UnfitModelError(f"its hidden states are not to be had: {first_line(error)}") from error
    if not _same(alone, expected):
        raise UnfitModelError("its head does more with hidden states than is known here")
    packing = _packed(model, rows, expected)
    return packing if packing.fits else replace(packing, layout=_unpacked(model, rows, expected))


def _packed(model: nn.Module, rows: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Packing:
    """What comes of rows end to end."""
    register()
    try:
        packed = copy_with_attention(model, PACKED)
        before = _through_backbone(packed, rows, Layout.PACKED)
        after = _through_backbone(packed, [(rows[0] + 1) % VOCABULARY, *rows[1:]], Layout.PACKED)
    except Exception as error:
        return Packing(Apart.NOT_EXCHANGED, first_line(error))
    if not _same(before[1:], after[1:]):
        return Packing(Apart.NO)
    return Packing(Apart.YES, layout=Layout.PACKED) if _same(before, expected) else Packing(Apart.LESS)


def _unpacked(model: nn.Module, rows: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Layout:
    """Side by side if that changes no row; in some models rows share more than a pass."""
    try:
        found = _through_backbone(model, rows, Layout.BATCHED)
    except Exception:
        return Layout.ALONE
    return Layout.BATCHED if _same(found, expected) else Layout.ALONE


def _through_backbone(model: Any, rows: Sequence[torch.Tensor], layout: Layout) -> list[torch.Tensor]:
    """Log-probabilities ``[length, vocabulary]`` of each row, as the learner computes them."""
    bounds = torch.tensor([0, *map(len, rows)]).cumsum(0)
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    laid, arguments = lay_out(torch.cat(list(rows)), positions, bounds, layout)
    with laid:
        hidden = backbone_of(model)(**arguments).last_hidden_state.flatten(0, 1)
    read = laid.place(torch.arange(len(positions)))
    logits = logit_transform(model.config)(model.get_output_embeddings()(hidden[read]))
    return [_logprobs(logits[a:b]) for a, b in pairwise(bounds.tolist())]


def lay_out(
    input_ids: torch.Tensor, position_ids: torch.Tensor, cu_seqlens: torch.Tensor, layout: Layout
) -> tuple[PackedRows, dict[str, Any]]:
    """The rows of a pass, within which a backbone is called, and its arguments; int64 ``[tokens]`` end to end."""
    if layout is not Layout.PACKED:
        batched = BatchedRows(cu_seqlens)
        return batched, batched.arguments(input_ids)
    arguments = {"input_ids": input_ids[None], "position_ids": position_ids[None], "use_cache": False}
    return PackedRows(cu_seqlens), arguments


def _logprobs(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1)


def _same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(bool(((a - b).abs() <= TOLERANCE).all()) for a, b in zip(some, others, strict=True))
