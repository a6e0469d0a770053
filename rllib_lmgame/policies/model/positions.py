"""The longest row of a model, and rotary embeddings that do not depend on the other rows of a batch.

Transformers chooses the frequencies of two kinds of scaled RoPE by the longest sequence of a forward pass. vLLM, and so
this, goes by the length it serves, ``context_length``:

* ``longrope`` (Phi-3): for all rows the long factors if ``context_length`` is above the original length, else short;
* ``dynamic`` (NTK): never scaled up to the original length; longer contexts are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

_LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
_SCALED_ALREADY = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of RoPE whose ``max_position_embeddings`` is the length after scaling; others' is multiplied."""
_CHOSEN = "chosen for all rows"
"""A ``rope_type`` that no forward pass changes."""


def context_problem(config: Any, context_length: int) -> str | None:
    """Why rows (prompt plus reply) of a model cannot have ``context_length`` tokens, or ``None``."""
    text = config.get_text_config(decoder=True)
    key, most = _most_positions(text)
    if most is not None and context_length > most:
        return f"{context_length} is more than the {most} positions of the model ({key} in its config.json)"
    for kind, parameters in _scalings(text):
        original = _original_length(text, parameters)
        if kind == "dynamic" and original is not None and context_length > original:
            return (
                f"{context_length} is more than {original}, from where on this model's dynamic RoPE changes with every "
                "token: sampler and learner would differ"
            )
    return None


def fix_rope(model: Any, context_length: int) -> None:
    """Choose the factors of long RoPE once, by the context as vLLM does, instead of by each forward pass."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for module in model.modules():
        if getattr(module, "rope_type", None) != "longrope" or not isinstance(module, nn.Module):
            continue
        original = _original_length(module.config, module.config.rope_parameters)
        length = original + 1 if original is not None and context_length > original else None
        frequencies, module.attention_scaling = ROPE_INIT_FUNCTIONS["longrope"](
            module.config, module.inv_freq.device, seq_len=length
        )
        module.register_buffer("inv_freq", frequencies, persistent=False)
        module.rope_type = _CHOSEN


def _most_positions(config: Any) -> tuple[str, int | None]:
    """The longest sequence as vLLM derives it, and its key; ``None`` where nothing bounds it."""
    if isinstance(own := getattr(config, "model_max_length", None), int):
        return "model_max_length", own
    known = {name: getattr(config, name, None) for name in _LENGTHS}
    lengths = {name: value for name, value in known.items() if isinstance(value, int) and value > 0}
    if not lengths:
        return "", None
    key = min(lengths, key=lengths.__getitem__)
    factor = 1.0
    if "gemma3" not in config.model_type:
        factors = [parameters.get("factor") for kind, parameters in _scalings(config) if kind not in _SCALED_ALREADY]
        factor = next((float(found) for found in reversed(factors) if found), 1.0)
    return key, int(lengths[key] * factor)


def _scalings(config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and parameters of each RoPE of a model; those of layers may differ."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for found in nested or [parameters]:
        yield str(found.get("rope_type", "default")), found


def _original_length(config: Any, parameters: dict[str, Any]) -> int | None:
    lengths = (parameters.get("original_max_position_embeddings"), getattr(config, "max_position_embeddings", None))
    return next((length for length in lengths if isinstance(length, int)), None)
