"""Sampling as vLLM's processed mode does it: the log-probabilities are those the token was drawn with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rllib_lmgame.inference.protocol import SamplingSpec


def processed_logprobs(
    logits: torch.Tensor, specs: Sequence[SamplingSpec], allowed: Sequence[list[int] | None]
) -> torch.Tensor:
    """Log-probabilities after constraint, temperature, top-k and top-p, in that order.

    Args:
        logits: float ``[rows, vocabulary]``; not changed.
        specs: One per row. Temperature 0 gives the numbers of temperature 1 without top-k and top-p.
        allowed: Token ids a row may take, or ``None`` for all.

    Returns: float32 ``[rows, vocabulary]``, ``-inf`` where a token cannot be drawn.
    """
    logits = logits.float()
    if any(ids is not None for ids in allowed):
        logits = torch.stack([_only(row, ids) for row, ids in zip(logits, allowed, strict=True)])
    temperatures = torch.tensor([s.temperature or 1.0 for s in specs], device=logits.device)
    logits = logits / temperatures[:, None]
    for row, spec in enumerate(specs):
        if spec.temperature > 0 and (spec.top_k or spec.top_p < 1):
            logits[row] = _truncate(logits[row], spec)
    return logits.log_softmax(-1)


def draw(
    logprobs: torch.Tensor,
    specs: Sequence[SamplingSpec],
    generators: Sequence[torch.Generator | None],
    shared: torch.Generator,
) -> torch.Tensor:
    """One token per row, int64 ``[rows]``; a row with a generator of its own does not depend on the others."""
    noise = torch.empty_like(logprobs).exponential_(generator=shared)
    for row, generator in enumerate(generators):
        if generator is not None:
            noise[row].exponential_(generator=generator)
    drawn = (logprobs - noise.log()).argmax(-1)  # exponential races: P(token wins) is its probability
    greedy = torch.tensor([s.temperature == 0 for s in specs], device=logprobs.device)
    return torch.where(greedy, logprobs.argmax(-1), drawn)


def _only(row: torch.Tensor, ids: list[int] | None) -> torch.Tensor:
    if ids is None:
        return row
    masked = torch.full_like(row, float("-inf"))
    masked[ids] = row[ids]
    return masked


def _truncate(row: torch.Tensor, spec: SamplingSpec) -> torch.Tensor:
    """``row`` with ``-inf`` outside its k most likely tokens and outside its nucleus (smallest set reaching top_p)."""
    values, order = row.sort(descending=True)
    keep = torch.ones_like(values, dtype=torch.bool)
    if spec.top_k:
        keep &= values >= values[min(spec.top_k, len(values)) - 1]
    probabilities = torch.where(keep, values, -torch.inf).softmax(-1)
    keep &= probabilities.cumsum(-1) - probabilities < spec.top_p
    return torch.full_like(row, float("-inf")).index_copy(0, order[keep], values[keep])
