"""How many tokens go through a model at once with ``auto``: what their activations take, and what is free, decide."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rllib_lmgame.learners.options import LEAST_TOKENS, MOST_TOKENS

USED_OF_CARD = 0.9
"""What activations may take of what is left of a card."""

AUTOCAST_WIDTH = 2.7
"""Bytes of a number that a pass in bfloat16 over float32 weights keeps on a CPU: what is added up stays float32."""

CPU_ACTIVATIONS = 2 * 2**30
"""Bytes of activations on a CPU whose other use is not known."""


@dataclass(frozen=True)
class Room:
    """Where the activations of a learner must fit: in most of what all else, ``taken`` bytes, leaves of the ``share``
    of its card that engines leave.
    """

    taken: float
    share: float = 1.0

    def activations(self, card: float) -> float:
        """Bytes for activations; ``card`` is the memory of the learner's card."""
        return max(0.0, self.share * card - self.taken) * USED_OF_CARD


@dataclass(frozen=True)
class Layer:
    """What a layer keeps of each token for the backward pass, in numbers.

    ``width`` is all that gradient checkpointing keeps, ``values`` are kept in full, and ``scores`` beside them for each
    token of the longest row: of heads whose scores are written out. ``norms`` of the values are there for the gradients
    of norms alone, which frozen ones have none of.
    """

    width: int = 0
    values: int = 0
    scores: int = 0
    norms: int = 0

    def frozen(self) -> Layer:
        """A layer of which adapters alone are trained."""
        return replace(self, values=self.values - self.norms, norms=0)


def layer_of(model: Any) -> Layer:
    """Of a causal language model of Transformers, on any device.

    Counted on layers of Qwen2, Llama, Qwen3, Gemma 2 and 3, OLMo 2, Mixtral, Qwen3-MoE and gpt-oss. A norm keeps its
    input and what it makes of it. Attention keeps its input, queries, keys and values of all query heads, and its
    output. A feed-forward layer or expert keeps its input and four vectors of its width.
    """
    text = model.config.get_text_config()
    width, heads = model.get_output_embeddings().in_features, number_of(text, "num_attention_heads")
    head = number_of(text, "head_dim") or width // max(1, heads)
    count = number_of(text, "num_hidden_layers")
    found = [part for part in model.modules() if type(part).__name__ == "ModuleList" and len(part) == count]
    # Of the last layer, by the last words of their names: the first layer may be of another kind.
    parts = {name.rpartition(".")[2]: part for name, part in found[0][-1].named_modules()} if found else {}
    of_heads = parts.keys() & _NORMS_OF_HEADS
    norms = sum(
        type(part).__name__.endswith("Norm") and getattr(getattr(part, "weight", None), "shape", None) == (width,)
        for name, part in parts.items()
        if name not in of_heads
    )
    values = (2 * (norms or 2) + 2) * width + 4 * heads * head + _fed_forward(text, width, "experts" in parts)
    if of_heads:
        values += 2 * (heads + (number_of(text, "num_key_value_heads") or heads)) * head
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())
    return Layer(width, values, heads * (2 if capped else int(sinks)), (norms or 2) * width)


def number_of(config: Any, name: str) -> int:
    """A whole number of a configuration; 0 if it has none, or one for each layer."""
    with suppress(AttributeError, RuntimeError):  # The latter where layers differ.
        value = getattr(config, name)
        return value if isinstance(value, int) else 0
    return 0


_NORMS_OF_HEADS = {"q_norm", "k_norm", "q_layernorm", "k_layernorm"}


def _fed_forward(text: Any, width: int, experts: bool) -> int:
    inner = number_of(text, "intermediate_size") or 4 * width
    if not experts:
        return 4 * inner
    own = number_of(text, "moe_intermediate_size") or inner
    shared = number_of(text, "shared_expert_intermediate_size") or number_of(text, "n_shared_experts") * own
    gated = 7 if getattr(text, "swiglu_limit", None) else 4  # gpt-oss clamps what is gated.
    return (number_of(text, "num_experts_per_tok") or 1) * (2 * width + gated * own) + 4 * shared


def kept_per_token(
    layers: int, layer: Layer, width: float, context: int = 0, gradient_checkpointing: bool = False
) -> int:
    """Bytes that a forward pass keeps of each token for the backward pass; with ``gradient_checkpointing`` each layer's
    input, and one layer in full. ``width`` is in bytes of a number, ``context`` in tokens of the longest row.
    """
    full = (layer.values + layer.scores * context) * width
    return int(layers * layer.width * (4 if width > 2 else 2) + full if gradient_checkpointing else layers * full)


def default_tokens(kept: int, on_gpu: bool, room: float | None = None) -> int:
    """Tokens of a micro-batch, a power of two; ``kept`` is the bytes of a token, 0 if they are not known.

    ``room`` is the bytes for activations; ``None``: any number on a GPU, else :data:`CPU_ACTIVATIONS`.
    """
    if room is None:
        room = math.inf if on_gpu else CPU_ACTIVATIONS
    if not kept or room >= kept * MOST_TOKENS:
        return MOST_TOKENS
    return 1 << (max(LEAST_TOKENS, int(room // kept)).bit_length() - 1)


def found_tokens(module: Any, context: int, on_gpu: bool, room: float | None) -> int:
    """Tokens of a micro-batch of a policy's module; ``context`` is the longest row, ``room`` as above."""
    model = module.language_model
    layers = number_of(model.config.get_text_config(), "num_hidden_layers")
    recomputes = module.options.gradient_checkpointing
    width = AUTOCAST_WIDTH if module.autocasts and not on_gpu and model.dtype.itemsize == 4 else model.dtype.itemsize
    kept = kept_per_token(layers, layer_of(model), width, context, recomputes)
    return default_tokens(kept if module.value_backbone is None else 2 * kept, on_gpu, room)
