"""Whether the rows of a pack stay apart in models of an architecture, and whether a row is read as the model reads it.

No list of names can tell: convolutions and recurrences know no boundaries, some attention needs a mask that packed rows
lack, some heads do more than multiply. So it is tried, on a small random copy of the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.model.attention import PACKED, PackedRows, register
from rllib_lmgame.policies.model.layout import BatchedRows, Layout
from rllib_lmgame.policies.model.lm_head import logit_transform
from rllib_lmgame.policies.model.miniature import VOCABULARY, copy_with_attention, miniature

LENGTHS = (7, 7, 12)
"""Of the rows that are tried; as in every pack, short ones first."""
BRANCHES = ((3, 4), (3, 3), (3, 3), (4, 4), (6, -1))
"""Length and parent of rows that continue others, as they are tried."""
TOLERANCE = 2e-3
"""Of log-probabilities in float32. What leaks or is left out moves those of random models by tenths and more."""


class UnfitModelError(ValueError):
    """Rows of a model cannot be computed as the model itself computes them."""


@dataclass(frozen=True)
class Packing:
    """How rows go through a model.

    Attributes:
        reason: Why they do not lie end to end in a pack.
        shares: Rows may continue others in a pack, so that a prompt of several is computed once.
        error: Why they may not.
        repeats: Attention then repeats the keys and values of what is shared.
    """

    reason: str = ""
    error: str = ""
    layout: Layout = Layout.ALONE
    shares: bool = False
    repeats: bool = False

    @property
    def fits(self) -> bool:
        """Several end to end in a pack."""
        return self.layout is Layout.PACKED


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
            return Packing(f"whether rows stay apart could not be tried: {first_line(error)}")
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
        return Packing(f"its attention cannot be exchanged: {first_line(error)}")
    if not _same(before[1:], after[1:]):
        return Packing("rows of a pack would reach each other")
    if not _same(before, expected):
        return Packing("its attention needs more than packed rows have")
    return Packing(layout=Layout.PACKED, **_shared(model, packed))


def _shared(model: Any, packed: Any) -> dict[str, Any]:
    """Whether rows may continue others, and whether keys are repeated for that."""
    lengths, parents = zip(*BRANCHES, strict=True)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, VOCABULARY, (sum(lengths),), generator=generator).split(lengths)
    paths = [[row] for row in range(len(lengths))]
    for path in paths:
        while (parent := parents[path[0]]) >= 0:
            path.insert(0, parent)
    expected = [_logprobs(model(torch.cat([ids[i] for i in p])[None], use_cache=False).logits[0]) for p in paths]
    own = [rows[-length:] for rows, length in zip(expected, lengths, strict=True)]
    positions = torch.cat([torch.arange(len(rows))[-n:] for rows, n in zip(expected, lengths, strict=True)])
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    pack, arguments = lay_out(torch.cat(list(ids)), positions, bounds, Layout.PACKED, torch.tensor(parents))
    assert pack.branches is not None
    try:
        found = _logprobs_of(packed, pack, arguments, torch.arange(len(positions)))
    except Exception as error:
        return {"error": first_line(error)}
    if not _same(list(found.split(lengths)), own):
        return {"error": "rows that continue others come out differently"}
    return {"shares": True, "repeats": pack.branches.repeats}


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
    found = _logprobs_of(model, laid, arguments, laid.place(torch.arange(len(positions))))
    return list(found.split([len(row) for row in rows]))


def _logprobs_of(model: Any, laid: PackedRows, arguments: dict[str, Any], read: torch.Tensor) -> torch.Tensor:
    with laid:
        hidden = backbone_of(model)(**arguments).last_hidden_state.flatten(0, 1)
    return _logprobs(logit_transform(model.config)(model.get_output_embeddings()(hidden[read])))


def lay_out(
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    cu_seqlens: torch.Tensor,
    layout: Layout,
    parents: torch.Tensor | None = None,
) -> tuple[PackedRows, dict[str, Any]]:
    """The rows of a pass, within which a backbone is called, and its arguments; int64 ``[tokens]`` end to end."""
    if layout is not Layout.PACKED:
        batched = BatchedRows(cu_seqlens)
        return batched, batched.arguments(input_ids)
    arguments = {"input_ids": input_ids[None], "position_ids": position_ids[None], "use_cache": False}
    return PackedRows(cu_seqlens, parents), arguments


def _logprobs(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1)


def _same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(bool(((a - b).abs() <= TOLERANCE).all()) for a, b in zip(some, others, strict=True))
