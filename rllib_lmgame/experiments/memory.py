"""Estimates of memory per process, from the model's shape and the numerics.

Learner: weights, gradients and optimizer states as in Rajbhandari et al. 2020 (ZeRO), section 3.1: for parameters in ``b`` bytes, ``b`` for
the weight, ``b`` for the gradient, and 8 bytes of Adam moments, and 4 more of a float32 master copy where ``b`` is 2. Stage 1 divides the
optimizer states over the learners, stage 2 the gradients too, stage 3 the weights too.

Activations: Korthikanti et al. 2022, equation 2, without the term of the attention matrix (which is not stored here): about
34 values-of-one-byte per token, layer and hidden unit in 16 bits; with gradient checkpointing only each layer's input.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

MIB = 2**20
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ENGINE_PROCESS_MIB = {"vllm": 1200.0, "transformers": 600.0}
"""Engine processes with nothing in them, measured on CPU; CUDA contexts take about as much of the GPU."""
LEARNER_PROCESS_MIB = 700.0
RUNNER_PROCESS_MIB = 450.0
CPU_KV_CACHE_MIB = 256.0


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on.

    Attributes:
        parameters: Number of weights, tied ones once.
        layers, hidden_size, vocab_size: As in the model's configuration; 0 if unknown.
        kv_size: Key (or value) entries per token and layer: key-value heads times head width.
        origin: How these were found.
    """

    parameters: int
    layers: int = 0
    hidden_size: int = 0
    kv_size: int = 0
    vocab_size: int = 0
    origin: str = "configuration"


def model_shape(config: Any, origin: str = "configuration") -> ModelShape:
    """Shape of a Hugging Face model, counted on the meta device: no memory, no download of weights.

    Args:
        config: ``transformers`` configuration of a causal language model.
        origin: Told in the result.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    heads = text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        kv_size=(getattr(text, "num_key_value_heads", None) or heads) * head_size,
        vocab_size=text.vocab_size,
        origin=origin,
    )


def shape_from_name(model: str) -> ModelShape | None:
    """A guess from a name such as ``Qwen2.5-7B-Instruct``."""
    match = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([BbMm])(?![a-z])", model)
    if match is None:
        return None
    scale = 1e9 if match.group(2) in "Bb" else 1e6
    return ModelShape(int(float(match.group(1)) * scale), origin="the model's name; it is not on this machine")


def learner_mib(
    shape: ModelShape,
    *,
    dtype: str = "float32",
    mixed_precision: bool = False,
    zero_stage: int = 0,
    num_learners: int = 1,
    microbatch_tokens: int = 8192,
    head_chunk_tokens: int = 4096,
    gradient_checkpointing: bool = False,
    copies: int = 0,
) -> dict[str, float]:
    """MiB of one learner, by what takes them.

    Args:
        shape: The model.
        dtype: Numerics the weights are held in.
        mixed_precision: 16-bit computation with float32 master weights kept by the optimizer.
        zero_stage: ZeRO stage, 0 to 3.
        num_learners: Learners the states are divided over.
        microbatch_tokens: Tokens in one forward and backward pass.
        head_chunk_tokens: Tokens whose logits exist at once.
        gradient_checkpointing: Keep only the layers' inputs.
        copies: Further frozen copies of the weights (reference model, averaged weights).
    """
    width = 2 if mixed_precision else BYTES[dtype]
    world = max(1, num_learners)
    weights = shape.parameters * width / (world if zero_stage >= 3 else 1)
    gradients = shape.parameters * width / (world if zero_stage >= 2 else 1)
    states = shape.parameters * (8 + (4 if width == 2 else 0)) / (world if zero_stage >= 1 else 1)
    per_unit = width if gradient_checkpointing else 17 * width
    activations = microbatch_tokens * shape.layers * shape.hidden_size * per_unit
    logits = min(head_chunk_tokens, microbatch_tokens) * shape.vocab_size * 4 * 2
    parts = {
        "weights": weights + copies * shape.parameters * width,  # copies are whole on every learner
        "gradients": gradients,
        "optimizer": states,
        "activations": activations + logits,
    }
    return {name: value / MIB for name, value in parts.items()}


def engine_mib(
    shape: ModelShape, *, dtype: str = "float32", tensor_parallel_size: int = 1, kv_cache_mib: float = CPU_KV_CACHE_MIB
) -> dict[str, float]:
    """MiB of one engine (of each GPU it is split over)."""
    return {"weights": shape.parameters * BYTES[dtype] / tensor_parallel_size / MIB, "kv cache": kv_cache_mib}


def kv_tokens(shape: ModelShape, *, dtype: str, tensor_parallel_size: int, kv_cache_mib: float) -> int | None:
    """Tokens that fit into the key-value cache; ``None`` if the shape is unknown."""
    per_token = 2 * shape.layers * shape.kv_size * BYTES[dtype] / tensor_parallel_size
    return int(kv_cache_mib * MIB / per_token) if per_token else None
