"""A small, randomly initialised copy of a model with every kind of layer, but fewer and narrower layers.

It shows on a CPU, within seconds and without the real weights, what an architecture does with packed rows.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch
from torch import nn

VOCABULARY = 64
WINDOW = 4
NARROWEST = 64
"""Hidden states of fewer numbers say little after they are normalised."""
MAX_PARAMETERS = 200_000_000
_WIDTH = re.compile(
    r"(.*_)?(hidden_size|intermediate_size|ffn_dim|attention_heads|key_value_heads|value_heads|key_heads)|"
    r"n_embd|n_inner|n_head|n_heads|n_head_kv|num_heads|num_kv_heads|d_model|d_ff|dim|dff|emb_dim|lru_width|"
    r"mamba_n_heads|mamba_num_heads|mamba_d_ssm|ffn_hidden_size|embedding_size|word_embed_proj_dim"
)
"""Widths and numbers of heads: all are divided by the same number, so that what divides what stays so."""
_LAYERS = re.compile(r"(num|n|decoder|encoder)_(hidden_)?layers?")
_WINDOW = re.compile(r"sliding_window|attention_chunk_size|(.*_)?window_size|local_attention|index_topk")
"""What a short row must be longer than for a layer to show what it is."""
_TOKEN = re.compile(r".*_token_(id|ids|index)")


def random_init_copy(config: Any) -> nn.Module:
    """A small random causal language model like ``config``, float32, on the CPU. Raises: ValueError: none runs."""
    failure: object = "it is too large"
    ids = torch.arange(VOCABULARY // 2)[None]
    layers = layers_needed(config)
    for share in _shares(config):
        try:
            small = type(config).from_dict(_shrunk(config.to_dict(), share, layers))
            if sum(p.numel() for p in _made(small, "meta").parameters()) > MAX_PARAMETERS:
                break  # The next ones are larger.
            model = _randomised(_made(small, "cpu"))
            with torch.no_grad():
                model(ids, use_cache=False)
            return model
        except Exception as error:  # Widths that do not fit together fail in many ways.
            failure = error
    raise ValueError(f"no small copy of this {config.model_type} model runs: {failure}")


def layers_needed(config: Any) -> int:
    """So many of the first layers have every kind of layer of the model; at least two where it has two."""
    values = _text_config(config).to_dict()
    count = _num_layers(values)
    kinds: list[tuple[str, ...]] = [()] * count
    for value in values.values():
        if isinstance(value, list | str) and len(value) == count:
            kinds = [(*kind, str(entry)) for kind, entry in zip(kinds, value, strict=True)]
    for module in _made(config, "meta").modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            parts = [tuple(type(part).__name__ for part in layer.modules()) for layer in module]
            kinds = [kind + part for kind, part in zip(kinds, parts, strict=True)]
    return max(min(2, count), *(kinds.index(kind) + 1 for kind in set(kinds)))


def _shares(config: Any) -> Iterator[Fraction]:
    """What widths may be multiplied by, rising."""
    text = _text_config(config)
    heads = getattr(text, "num_attention_heads", None)
    heads = heads if isinstance(heads, int) and heads > 2 else 2
    shares = {Fraction(1, n) for n in (32, 16, 8, 4, 2)} | {Fraction(1, heads), Fraction(2, heads)}
    yield from (share for share in sorted(shares) if share < 1 and text.hidden_size * share >= NARROWEST)
    yield Fraction(1)


def copy_with_attention(model: Any, implementation: str) -> nn.Module:
    other = _made(copy.deepcopy(model.config), "cpu", implementation)  # Which is told of the attention.
    other.load_state_dict(model.state_dict())
    return other


def _made(config: Any, device: str, attention: str = "eager") -> nn.Module:
    from transformers import AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()


def _randomised(model: nn.Module) -> nn.Module:
    """Weights with which every part has its say: also those that start at zero or one."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty_like(parameter).normal_(generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.1 * noise)
    return model


def _text_config(config: Any) -> Any:
    return config.get_text_config(decoder=True)


def _num_layers(values: dict[str, Any]) -> int:
    return next((v for name, v in values.items() if _LAYERS.fullmatch(name) and isinstance(v, int)), 1)


def _shrunk(values: dict[str, Any], share: Fraction, layers: int) -> dict[str, Any]:
    """The fields of a configuration, with fewer layers, narrower ones and few tokens."""
    count, small = _num_layers(values), {}
    for name, value in values.items():
        if isinstance(value, dict) and "model_type" in value:
            value = _shrunk(value, share, layers)
        elif isinstance(value, dict) and value and all(str(layer).isdigit() for layer in value):
            value = {layer: fields for layer, fields in value.items() if int(layer) < layers}
        elif isinstance(value, list | str) and len(value) == count > layers:
            value = value[:layers]
        elif isinstance(value, int) and not isinstance(value, bool):
            value = _shrunk_number(name, value, share, layers)
        elif _TOKEN.fullmatch(name) and value is not None:
            value = [0]
        small[name] = value
    return small


def _shrunk_number(name: str, value: int, share: Fraction, layers: int) -> int:
    if _LAYERS.fullmatch(name):
        return min(value, layers)
    if _WINDOW.fullmatch(name):
        return min(value, WINDOW)
    if name.startswith("vocab_size"):
        return VOCABULARY
    if _TOKEN.fullmatch(name):
        return 0
    return max(1, math.ceil(value * share)) if _WIDTH.fullmatch(name) and value > 1 else value
