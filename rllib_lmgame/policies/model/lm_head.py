"""Log-probabilities and entropies at selected positions, without ever holding the logits of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from rllib_lmgame.policies.model.chunked_logprobs import chosen_and_entropy

Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Allowed:
    """Positions (int64 ``[C]``, rising) whose token was chosen among a few ids, and these, end to end (int64 ``[S]``).

    ``owner`` int64 ``[S]``: place in ``positions``, never falling.
    """

    positions: torch.Tensor
    owner: torch.Tensor
    ids: torch.Tensor

    def split(self, sizes: Sequence[int]) -> list[Allowed | None]:
        """The parts of consecutive stretches of positions, counted from each one's start; ``None`` where none are."""
        ends = torch.tensor([0, *sizes], device=self.positions.device).cumsum(0)
        cuts = torch.searchsorted(self.positions, ends)
        id_cuts = torch.searchsorted(self.owner, cuts)
        stretches = zip(pairwise(cuts.tolist()), pairwise(id_cuts.tolist()), ends.tolist(), strict=False)
        return [
            Allowed(self.positions[a:b] - start, self.owner[i:j] - a, self.ids[i:j]) if b > a else None
            for (a, b), (i, j), start in stretches
        ]


def num_chunks(positions: int, head_chunk_tokens: int) -> int:
    """Chunks that keep the logits of at most ``head_chunk_tokens`` positions at once; at least one."""
    return max(1, -(-positions // head_chunk_tokens))


def token_logprobs(
    head: Head,
    hidden: torch.Tensor,
    target_ids: torch.Tensor,
    *,
    chunks: int = 1,
    temperature: float | torch.Tensor = 1.0,
    with_entropy: bool = True,
    entropy_gradient: bool = False,
    allowed: Allowed | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each target, and the entropy of what it was drawn from: float32 ``[positions]`` each.

    Args:
        head: Maps hidden states ``[n, width]`` to logits ``[n, vocabulary]``. It is called exactly ``chunks`` times,
            whatever the positions: under partitioned weights every call is a collective.
        hidden: ``[positions, width]``; at least one.
        target_ids: int64 ``[positions]``.
        chunks: Calls of ``head``. With several, each chunk's logits are recomputed in the backward pass.
        temperature: Sampling temperature the logits are divided by, or that of each position ``[positions]``.
        with_entropy, entropy_gradient: Whether the entropy is computed (else ``None``), and differentiated.
        allowed: Positions at which only some ids could be drawn: both numbers are those among them.
    """
    positions = target_ids.shape[0]
    if positions < chunks:
        hidden, target_ids = _fill(hidden, chunks), _fill(target_ids, chunks)
    temperatures = _each(temperature, positions, chunks)
    recompute = chunks > 1 and torch.is_grad_enabled() and hidden.requires_grad
    targets = target_ids.tensor_split(chunks)
    parts = [None] * chunks if allowed is None else allowed.split([len(t) for t in targets])
    logprobs, entropies = [], []
    for h, t, part, each in zip(hidden.tensor_split(chunks), targets, parts, temperatures, strict=True):
        arguments = (head, h, t, each, with_entropy, entropy_gradient, part)
        logprob, entropy = checkpoint(_chunk, *arguments, use_reentrant=False) if recompute else _chunk(*arguments)
        logprobs.append(logprob)
        entropies.append(entropy)
    joined = torch.cat(logprobs)[:positions] if len(logprobs) > 1 or positions < chunks else logprobs[0]
    if not with_entropy:
        return joined, None
    return joined, torch.cat(entropies)[:positions]


def _each(temperature: float | torch.Tensor, positions: int, chunks: int) -> Sequence[float | torch.Tensor]:
    """The temperature of each chunk, or of its positions."""
    if not isinstance(temperature, torch.Tensor):
        return [temperature] * chunks
    column = temperature[:, None]
    return (_fill(column, chunks) if positions < chunks else column).tensor_split(chunks)


def _fill(x: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([x, x[:1].expand(size - x.shape[0], *x.shape[1:])])


def _chunk(
    head: Head,
    hidden: torch.Tensor,
    target_ids: torch.Tensor,
    temperature: float | torch.Tensor,
    with_entropy: bool,
    entropy_gradient: bool,
    allowed: Allowed | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = head(hidden).float()
    if isinstance(temperature, torch.Tensor) or temperature != 1.0:
        logits = logits.div_(temperature)
    if allowed is None:
        return chosen_and_entropy(logits, target_ids, with_entropy, entropy_gradient)
    chosen, entropy = _among_few(logits, target_ids, allowed, with_entropy, entropy_gradient)
    if len(allowed.positions) == len(target_ids):
        return chosen, entropy
    rest, rest_entropy = chosen_and_entropy(logits, target_ids, with_entropy, entropy_gradient)
    if rest_entropy is not None and entropy is not None:
        rest_entropy = rest_entropy.index_copy(0, allowed.positions, entropy)
    return rest.index_copy(0, allowed.positions, chosen), rest_entropy


def _among_few(
    logits: torch.Tensor, target_ids: torch.Tensor, allowed: Allowed, with_entropy: bool, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities and entropies ``[C]`` at the constrained positions, each among its own ids."""
    positions, owner = allowed.positions, allowed.owner
    of_ids = logits[positions[owner], allowed.ids]
    highest = of_ids.new_full(positions.shape, -torch.inf).scatter_reduce(0, owner, of_ids.detach(), "amax")
    total = torch.zeros_like(highest).index_add(0, owner, (of_ids - highest[owner]).exp())
    norm = highest + total.log()
    chosen = logits[positions, target_ids[positions]] - norm
    if not with_entropy:
        return chosen, None
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
        logprobs = of_ids - norm[owner]
        return chosen, -torch.zeros_like(norm).index_add(0, owner, logprobs.exp() * logprobs)


CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
FACTORS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")
TOKENS = "unpadded_vocab_size"
"""Fields of configurations that say what a family does to its head's output."""


def logit_transform(config: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What some families do to their head's output: a factor (Cohere, Falcon-H1), a divisor (Granite, Inkling), which
    is a factor in HyperCLOVA X, soft capping (Gemma, xLSTM). Inkling's head has rows of no token, which are left out.
    """
    config = config.get_text_config(decoder=True)
    factor, divisor, cap, tokens = (_said(config, names) for names in (FACTORS, DIVISORS, CAPS, (TOKENS,)))
    if config.model_type == "hyperclovax":
        factor, divisor = divisor, None

    def transform(logits: torch.Tensor) -> torch.Tensor:
        if tokens is not None:
            logits = logits[..., : int(tokens)]
        if factor is not None:
            logits = logits * factor
        if divisor is not None:
            logits = logits / divisor
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return logits

    return transform


def _said(config: Any, names: Sequence[str]) -> float | None:
    """The first of these fields that a configuration has."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)
