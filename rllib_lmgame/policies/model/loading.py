"""A model with all its weights, as Transformers reads them, and how rows of tokens go through it.

Whether an architecture supports packed rows (no row affects another, and each gives the model's own output) no list of
names can tell: convolutions and recurrences know no boundaries, some attention needs a mask that packed rows lack, some
heads do more than multiply. So it is tried, on a small, randomly initialised copy of the model with every kind of
layer, but fewer and narrower layers: on a CPU, within seconds and without the real weights.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.model.attention import FLASH, PACKED, Layout, PackedRows, lay_out, register
from rllib_lmgame.policies.model.heads import backbone_of, logit_transform
from rllib_lmgame.policies.model.router_replay import replays
from rllib_lmgame.telemetry.quiet import no_bars_for

logger = logging.getLogger(__name__)

MODEL = "language_model.model"
NO_REPLAY = "its routers cannot take the experts that an engine chose, so log-probabilities differ from the engine's"


class IncompleteModelError(ValueError):
    """Weights of a model are missing or have other shapes. The message continues a sentence about the model."""


def whole_model(directory: str, **arguments: Any) -> Any:
    """``AutoModelForCausalLM.from_pretrained`` of a directory or hub id; safetensors, unless they say otherwise.

    Raises:
        IncompleteModelError: Transformers would have filled weights with noise.
        Exception: whatever it raises itself: a damaged file fails in many ways.
    """
    from transformers import AutoModelForCausalLM

    arguments = {"use_safetensors": True, **arguments}
    with no_bars_for(directory):
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, ignore_mismatched_sizes=True, output_loading_info=True, **arguments
        )
    others, missing = sorted(info["mismatched_keys"]), sorted(info["missing_keys"])
    if others:
        name, there, here = others[0]
        raise IncompleteModelError(f"has {name!r} of {list(there)}, and its config.json asks for {list(here)}")
    if missing:
        raise IncompleteModelError(f"lacks {len(missing)} weights, among them {missing[0]!r}")
    return model


def empty_model(directory: str, config: Any, **arguments: Any) -> Any:
    """As :func:`whole_model`, without weights: parameters are on the meta device, buffers as the model makes them."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.initialization import no_init_weights

    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(config, **arguments)
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
    model.tie_weights()
    with suppress(OSError):  # It has none.
        model.generation_config = GenerationConfig.from_pretrained(directory)
    return model.eval()


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
        layout: How they lie in a pass.
        reason: Why they do not lie end to end in a pack.
        shares: Rows may continue others in a pack, so that a prompt of several is computed once.
        error: Why they may not.
        repeats: Attention then repeats the keys and values of what is shared.
        replays: Routers take the experts that an engine chose; ``None``: there are no experts.
    """

    layout: Layout = Layout.ALONE
    reason: str = ""
    shares: bool = False
    error: str = ""
    repeats: bool = False
    replays: bool | None = None

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


@torch.no_grad()
def _tried(config: Any) -> Packing:
    with torch.random.fork_rng(devices=[]):  # What is random elsewhere stays as it is.
        try:
            model = random_init_copy(config)
        except Exception as error:  # A configuration of others fails in many ways.
            experts = getattr(_text_config(config), "num_experts_per_tok", None)
            reason = f"whether rows stay apart could not be tried: {first_line(error)}"
            return Packing(reason=reason, replays=False if experts else None)
        return replace(_compared(model), replays=replays(model, torch.arange(LENGTHS[-1])))


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
    if packing.fits:
        return packing
    try:  # Side by side if that changes no row; in some models rows share more than a pass.
        beside = _same(_through_backbone(model, rows, Layout.BATCHED), expected)
    except Exception:
        beside = False
    return replace(packing, layout=Layout.BATCHED if beside else Layout.ALONE)


def _packed(model: Any, rows: Sequence[Tensor], expected: Sequence[Tensor]) -> Packing:
    """What comes of rows end to end."""
    register()
    try:
        packed = _made(copy.deepcopy(model.config), "cpu", PACKED)  # A configuration is told of its attention.
        packed.load_state_dict(model.state_dict())
        before = _through_backbone(packed, rows, Layout.PACKED)
        after = _through_backbone(packed, [(rows[0] + 1) % VOCABULARY, *rows[1:]], Layout.PACKED)
    except Exception as error:
        return Packing(reason=f"its attention cannot be exchanged: {first_line(error)}")
    if not _same(before[1:], after[1:]):
        return Packing(reason="rows of a pack would reach each other")
    if not _same(before, expected):
        return Packing(reason="its attention needs more than packed rows have")
    return _shared(model, packed)


def _shared(model: Any, packed: Any) -> Packing:
    """Whether rows of a pack may continue others, and whether keys are repeated for that."""
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
    assert pack.prefix_tree is not None
    try:
        found = _logprobs_of(packed, pack, arguments, torch.arange(len(positions)))
    except Exception as error:
        return Packing(Layout.PACKED, error=first_line(error))
    if not _same(list(found.split(lengths)), own):
        return Packing(Layout.PACKED, error="rows that continue others come out differently")
    return Packing(Layout.PACKED, shares=True, repeats=pack.prefix_tree.repeats)


def _through_backbone(model: Any, rows: Sequence[Tensor], layout: Layout) -> list[Tensor]:
    bounds = torch.tensor([0, *map(len, rows)]).cumsum(0)
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    laid, arguments = lay_out(torch.cat(list(rows)), positions, bounds, layout)
    found = _logprobs_of(model, laid, arguments, laid.place(torch.arange(len(positions))))
    return list(found.split([len(row) for row in rows]))


def _logprobs_of(model: Any, laid: PackedRows, arguments: dict[str, Any], read: Tensor) -> Tensor:
    with laid:
        hidden = backbone_of(model)(**arguments).last_hidden_state.flatten(0, 1)
    return _logprobs(logit_transform(model.config)(model.get_output_embeddings()(hidden[read])))


def _logprobs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1)


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(bool(((a - b).abs() <= TOLERANCE).all()) for a, b in zip(some, others, strict=True))


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


def load_language_model(
    model_dir: str, dtype: torch.dtype, attention: str, *, trust_remote_code: bool = False, empty: bool = False
) -> tuple[Any, Packing]:
    """An ``AutoModelForCausalLM`` with dropout and noise off and attention packed where that is right, and how rows go
    through it. ``empty``: as :func:`empty_model`.

    Raises: ConfigError: no such model, of a kind that cannot be trained here, or weights are missing.
    """
    from transformers import AutoConfig

    config: Any = None
    try:
        config = AutoConfig.from_pretrained(model_dir, trust_remote_code=trust_remote_code)
        packing = packing_of(config)
        _silence(config)
        model = (empty_model if empty else whole_model)(
            model_dir,
            config=config,
            dtype=dtype,
            attn_implementation=attention if packing.fits or attention == FLASH else None,
            trust_remote_code=trust_remote_code,
        )
    except UnfitModelError as error:
        raise ConfigError(MODEL, f"{config.model_type} models cannot be trained here: {error}") from error
    except IncompleteModelError as error:
        raise ConfigError(MODEL, f"{model_dir!r} {error}") from error
    except (OSError, TypeError, ValueError, ImportError, AttributeError, KeyError) as error:
        quantized = getattr(config, "quantization_config", None) is not None
        of = "as its quantization_config says" if quantized else "as a causal language model"
        raise ConfigError(MODEL, f"{model_dir!r} could not be loaded {of}: {first_line(error)}") from error
    if not packing.fits:
        what = f"{packing.layout.value} instead of packed, since {packing.reason}; no prompt is shared"
        logger.warning("%s: %s", model_dir, what)
    elif not packing.shares:
        logger.warning("%s: a prompt of several rows is computed for each: %s", model_dir, packing.error)
    if packing.replays is False:
        logger.warning("%s: %s", model_dir, NO_REPLAY)
    return model, packing


def _silence(config: Any) -> None:
    """Turn off what a model draws at random in training: dropout, layers left out, the noise of some routers."""
    for name, value in vars(config).items():
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_diff_dict"):  # Another configuration inside.
            _silence(value)


_CHOSEN = "chosen for all rows"
"""A ``rope_type`` that no forward pass changes."""


def context_problem(config: Any, context_length: int) -> str | None:
    """Why rows (prompt plus reply) of a model cannot have ``context_length`` tokens, or ``None``."""
    text = config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
    most = next((length for name in names if isinstance(length := getattr(text, name, None), int)), None)
    scalings = dict(_scalings(text))
    if "dynamic" in scalings:  # Longer ones change with every token: sampler and learner would differ.
        most = _original_length(text, scalings["dynamic"])
    elif "linear" in scalings and most is not None and "gemma3" not in text.model_type:
        most = int(most * float(scalings["linear"].get("factor") or 1.0))
    if most is None or context_length <= most:
        return None
    return f"{context_length} is more than the {most} positions of the model"


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
