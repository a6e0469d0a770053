"""Log-probabilities and entropies computed from logits in blocks, without copies of the logits.

With 150,000 tokens the logits are the largest tensor of an update. PyTorch's operations hold six or seven of that size
at once. Here there are the logits, whose place the gradient takes, and one block of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

BLOCK_BYTES = 4 * 2**20
GPU_BLOCK_BYTES = 32 * 2**20
"""Size of temporary blocks, at least one row: small ones stay in a CPU's cache, large ones save kernels on a GPU."""


def chosen_and_entropy(
    logits: torch.Tensor, target_ids: torch.Tensor, with_entropy: bool, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each target, and the entropy of each row: float32 ``[n]`` twice (the second ``None`` without).

    Args:
        logits: float32 ``[n, vocabulary]``. The backward pass writes their gradient in their place: it can run once,
            and no earlier operation may need them.
        target_ids: int64 ``[n]``.
        with_entropy, entropy_gradient: Whether the entropy is computed, and differentiated.
    """
    chosen, entropy = _ChosenAndEntropy.apply(logits, target_ids, with_entropy, entropy_gradient)
    return chosen, entropy if with_entropy else None


class _ChosenAndEntropy(torch.autograd.Function):
    """``log p_t`` and ``H = -sum p log p`` for ``p = softmax(logits)``."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target_ids: torch.Tensor, with_entropy: bool, entropy_gradient: bool
    ) -> Any:
        chosen = logits.gather(-1, target_ids[:, None]).squeeze(-1)
        norm, entropy = torch.empty_like(chosen), torch.zeros_like(chosen)
        for rows in _blocks(logits):
            block = logits[rows]
            norm[rows] = block.logsumexp(-1)
            if with_entropy:
                logprobs = block - norm[rows, None]
                entropy[rows] = -torch.linalg.vecdot(logprobs.exp(), logprobs)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(logits, target_ids, norm, entropy)
        ctx.entropy_gradient = with_entropy and entropy_gradient
        return chosen - norm, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_chosen: torch.Tensor, of_entropy: torch.Tensor) -> Any:
        logits, target_ids, norm, entropy = ctx.saved_tensors
        # d log p_t / d z_j = [j = t] - p_j,   d H / d z_j = -p_j (log p_j + H)
        for rows in _blocks(logits):
            block = logits[rows].sub_(norm[rows, None])
            if ctx.entropy_gradient:
                probabilities = block.exp()
                block.add_(entropy[rows, None]).mul_(of_entropy[rows, None]).add_(of_chosen[rows, None]).mul_(
                    probabilities
                ).neg_()
            else:
                block.exp_().mul_(-of_chosen[rows, None])
        logits.scatter_add_(-1, target_ids[:, None], of_chosen[:, None])
        return logits, None, None, None


def _blocks(logits: torch.Tensor) -> Iterator[slice]:
    block = GPU_BLOCK_BYTES if logits.is_cuda else BLOCK_BYTES
    size = max(1, block // max(1, 4 * logits.shape[-1]))
    for start in range(0, logits.shape[0], size):
        yield slice(start, start + size)
