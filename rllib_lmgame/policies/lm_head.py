"""Log-probabilities and entropies at selected positions, without ever holding the logits of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Head = Callable[[torch.Tensor], torch.Tensor]


def num_chunks(positions: int, head_chunk_tokens: int) -> int:
    """Chunks needed to keep the logits of at most ``head_chunk_tokens`` positions at once; at least one."""
    return max(1, -(-positions // head_chunk_tokens))


def token_logprobs(
    head: Head,
    hidden: torch.Tensor,
    target_ids: torch.Tensor,
    *,
    chunks: int = 1,
    temperature: float = 1.0,
    with_entropy: bool = True,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each target, and the entropy of the distribution it was drawn from.

    Args:
        head: Maps hidden states ``[n, width]`` to logits ``[n, vocabulary]``. It is called exactly ``chunks`` times, also
            where there are fewer positions, since under partitioned weights every call is a collective.
        hidden: ``[positions, width]``; at least one.
        target_ids: int64 ``[positions]``.
        chunks: Calls of ``head``. With more than one, each chunk's logits are recomputed in the backward pass.
        temperature: Sampling temperature the logits are divided by.
        with_entropy: Whether the entropy is computed.
        entropy_gradient: Whether it is differentiated.

    Returns:
        float32 ``[positions]`` twice (the second ``None`` without entropy).
    """
    positions = target_ids.shape[0]
    if positions < chunks:
        hidden, target_ids = _fill(hidden, chunks), _fill(target_ids, chunks)
    recompute = chunks > 1 and torch.is_grad_enabled() and hidden.requires_grad
    logprobs, entropies = [], []
    for h, t in zip(hidden.tensor_split(chunks), target_ids.tensor_split(chunks), strict=True):
        arguments = (head, h, t, temperature, with_entropy, entropy_gradient)
        logprob, entropy = checkpoint(_chunk, *arguments, use_reentrant=False) if recompute else _chunk(*arguments)
        logprobs.append(logprob)
        entropies.append(entropy)
    joined = torch.cat(logprobs)[:positions] if len(logprobs) > 1 or positions < chunks else logprobs[0]
    if not with_entropy:
        return joined, None
    return joined, torch.cat(entropies)[:positions]


def _fill(x: torch.Tensor, size: int) -> torch.Tensor:
    """``x`` extended to ``size`` entries with its first one."""
    return torch.cat([x, x[:1].expand(size - x.shape[0], *x.shape[1:])])


def _chunk(
    head: Head, hidden: torch.Tensor, target_ids: torch.Tensor, temperature: float, with_entropy: bool, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(-1, target_ids[:, None]).squeeze(-1)
    if not with_entropy:
        return chosen, None
    if entropy_gradient:
        return chosen, -(logprobs.exp() * logprobs).sum(-1)
    with torch.no_grad():
        return chosen, -(logprobs.exp() * logprobs).sum(-1)


def logit_transform(config: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What some model families do to the output of their head: soft capping (Gemma), a factor (Cohere) or a divisor (Granite)."""
    cap = getattr(config, "final_logit_softcapping", None)
    factor = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)

    def transform(logits: torch.Tensor) -> torch.Tensor:
        if factor is not None:
            logits = logits * factor
        if divisor is not None:
            logits = logits / divisor
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    return transform
