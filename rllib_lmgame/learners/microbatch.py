"""How many tokens go through a model at once where nothing is set: what their activations take decides."""

from __future__ import annotations

from rllib_lmgame.settings.sections.token_ppo import LEAST_TOKENS, MOST_TOKENS

CPU_ACTIVATIONS = 2 * 2**30
"""Bytes of activations on a CPU, which the learner shares with engines, env runners and Ray."""


def kept_per_token(
    layers: int, hidden_size: int, intermediate_size: int, width: int, gradient_checkpointing: bool = False
) -> int:
    """Bytes that a forward pass keeps of each token for the backward pass, counted on a Qwen2 layer. A layer keeps ten
    values of the model's width (inputs of norms and projections, queries, keys and values of all heads, the attention's
    output) and four of the feed-forward width. With gradient checkpointing it is each layer's input, and one layer in
    full.

    Args:
        layers, hidden_size, intermediate_size: The model's.
        width: Bytes of a value.
        gradient_checkpointing: Activations are computed again in the backward pass.
    """
    layer = (10 * hidden_size + 4 * intermediate_size) * width
    return layers * hidden_size * width + layer if gradient_checkpointing else layers * layer


def default_tokens(kept: int, on_gpu: bool) -> int:
    """Tokens of a micro-batch: a power of two.

    Args:
        kept: Bytes that a token keeps; 0 if it is not known.
        on_gpu: The learner computes on a GPU.
    """
    if on_gpu or not kept:
        return MOST_TOKENS
    fitting = max(LEAST_TOKENS, CPU_ACTIVATIONS // kept)
    return min(MOST_TOKENS, 1 << (fitting.bit_length() - 1))
