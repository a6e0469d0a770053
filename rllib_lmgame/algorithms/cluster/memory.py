"""Estimates of the most memory each process takes, from the model's shape and the numerics.

Learner: weights, gradients and optimizer states as in Rajbhandari et al. 2020 (ZeRO), section 3.1. A parameter of ``b``
bytes takes ``b`` for the weight, ``b`` for the gradient (4 with ZeRO, which sums in float32) and 8 for Adam's moments.
If ``b`` is 2, a float32 master copy takes another 4. ZeRO stage 1 divides the optimizer states over the learners,
stage 2 also the gradients, stage 3 also the weights, part by part but for those loaded whole (:data:`START`): beside
adapters with ``modules_to_save``. An optimizer in host memory has masters (4), moments (8), gradients (4), and another
copy of weights (``b``), or with stage 3 of gradients (4), of which the GPU then has none (counted in DeepSpeed 0.19).

Activations: :func:`~rllib_lmgame.learners.microbatch.kept_per_token`.

Head: the logits of one chunk, which their gradient replaces, and the head's gradient of this chunk. From the second
chunk on also the sum of earlier chunks, since autograd adds to the gradients only at the end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.inference.options import CPU_KV_CACHE_MIB
from rllib_lmgame.learners.microbatch import AUTOCAST_WIDTH, MOST_TOKENS, Layer, kept_per_token, layer_of, number_of
from rllib_lmgame.learners.options import offloaded
from rllib_lmgame.policies.model.files import meta_model, model_directory
from rllib_lmgame.policies.model.tiny import check_shape, tiny_config
from rllib_lmgame.policies.options import TINY_MODEL, LoraOptions

MIB = 2**20
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LEARNER_PROCESS_MIB = 700.0
"""Processes with nothing in them; an engine's stands in its entry (:mod:`rllib_lmgame.inference.options`)."""
RUNNER_PROCESS_MIB = 450.0
MAIN_PROCESS_MIB = 650.0
RAY_MIB = 700.0
"""Ray's own processes on a machine, and the command itself."""
WORKSPACE_MIB = 60.0
"""The first update adds this to a learner of any model: temporary blocks, numerical libraries. Measured on CPU."""
ZERO_BUFFERS = "ZeRO's buffers"
START = "weights at the start or a push"
ZERO_3_LIVE = 1_000_000_000
"""Gathered weights that ZeRO 3 holds at once, in entries: DeepSpeed's ``stage3_max_live_parameters``."""
LOGITS_WHILE_SAMPLING = 4
"""Copies of a step's logits while an engine samples."""
CARDS_GIB = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
"""Sizes GPUs come in."""


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on.

    Attributes:
        parameters: Number of weights, tied ones once.
        layers, hidden_size, vocab_size: 0 if unknown.
        kv_size: Key (or value) entries per token and layer: key-value heads times head width.
        layer: What each layer keeps of a token.
        tied: The head is the input embedding.
        largest: Entries of its largest tensor; 0 if unknown.
        origin: How these were found.
        config: Of ``transformers``; ``None`` if unknown.
    """

    parameters: int
    layers: int = 0
    hidden_size: int = 0
    kv_size: int = 0
    vocab_size: int = 0
    layer: Layer = Layer()
    tied: bool = True
    largest: int = 0
    origin: str = "configuration"
    config: Any = field(default=None, compare=False, repr=False)

    @property
    def head(self) -> int:
        return self.vocab_size * self.hidden_size


QWEN2_5 = {
    "0.5B": (24, 896, 4864, 14, 2, 151_936, True),
    "1.5B": (28, 1536, 8960, 12, 2, 151_936, True),
    "3B": (36, 2048, 11_008, 16, 2, 151_936, True),
    "7B": (28, 3584, 18_944, 28, 4, 152_064, False),
    "14B": (48, 5120, 13_824, 40, 8, 152_064, False),
    "32B": (64, 5120, 27_648, 40, 8, 152_064, False),
    "72B": (80, 8192, 29_568, 64, 8, 152_064, False),
}
"""The models of the examples, which need not be on the machine that plans the run: layers, widths, heads, words."""


@functools.lru_cache(maxsize=16)
def published(size: str) -> ModelShape:
    from transformers import Qwen2Config

    fields = "num_hidden_layers hidden_size intermediate_size num_attention_heads num_key_value_heads vocab_size"
    values = zip((*fields.split(), "tie_word_embeddings"), QWEN2_5[size], strict=True)
    return model_shape(Qwen2Config(**dict(values)), "the published shape; it is not on this machine")


def model_shape(config: Any, origin: str = "configuration") -> ModelShape:
    """Shape of a ``transformers`` model, counted on the meta device: no memory, no download of weights."""
    model = meta_model(config)
    text = config.get_text_config()
    heads = number_of(text, "num_attention_heads")
    hidden = number_of(text, "hidden_size")
    head_size = number_of(text, "head_dim") or hidden // max(1, heads)
    return ModelShape(
        parameters=sum(weight.numel() for weight in model.parameters()),
        layers=number_of(text, "num_hidden_layers"),
        hidden_size=hidden,
        kv_size=(number_of(text, "num_key_value_heads") or heads) * head_size,
        vocab_size=number_of(text, "vocab_size"),
        layer=layer_of(model),
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        largest=max(weight.numel() for weight in model.parameters()),
        origin=origin,
        config=config,
    )


def shape_from_name(model: str) -> ModelShape | None:
    """The published shape of a Qwen2.5 model, or a guess from a name such as ``Llama-3.1-8B``."""
    known = re.search(r"Qwen2\.5-(?:Coder-|Math-)?([\d.]+B)(?![a-z])", model)
    if known is not None and known.group(1) in QWEN2_5:
        return published(known.group(1))
    match = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([BbMm])(?![a-z])", model)
    if match is None:
        return None
    scale = 1e9 if match.group(2) in "Bb" else 1e6
    return ModelShape(int(float(match.group(1)) * scale), origin="the model's name; it is not on this machine")


def shape_of(config: Any, policy: str) -> ModelShape | None:
    """Shape of a policy's model without reading weights; ``None`` if it cannot be known here."""
    options = config.language_model_of(policy)
    if options.model == TINY_MODEL:
        return model_shape(tiny_config(check_shape(options.tiny, "config.language_model.tiny")), "language_model.tiny")
    return shape_of_model(options.model)


def shape_of_model(model: str) -> ModelShape | None:
    """Shape of a directory's or a hub's model; ``None`` if neither files nor the name tell."""
    try:
        return _shape_of_files(model_directory(model))
    except Exception:  # A configuration of others fails in many ways.
        return shape_from_name(model)


@functools.lru_cache(maxsize=16)
def _shape_of_files(model: str) -> ModelShape:
    from transformers import AutoConfig  # Loads much.

    found = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    return model_shape(found, "its configuration")


def learner_mib(
    shape: ModelShape,
    *,
    dtype: str = "float32",
    mixed_precision: bool = False,
    zero: Mapping[str, Any] | None = None,
    num_learners: int = 1,
    microbatch_tokens: int = MOST_TOKENS,
    head_chunk_tokens: int = 4096,
    observes: bool = False,
    constrained_decoding: bool = False,
    gradient_checkpointing: bool = False,
    copies: int = 0,
    separate_value: bool = False,
    critic: bool = True,
    context: int = 0,
    adapters: int | None = None,
    holds_base: bool = True,
    autocasts: bool = False,
    loads_whole: bool = False,
) -> dict[str, float]:
    """MiB of one learner at its peak, by what takes them.

    Args:
        mixed_precision: 16-bit computation; the optimizer keeps float32 master weights.
        zero: DeepSpeed's ``zero_optimization`` with ``reduce_bucket_size``; ``None`` without ZeRO.
        observes: The game's text is learned too: its logits exist beside those of replies.
        constrained_decoding: The logits' gradient is then the sum of two, so it does not replace the logits.
        copies: Further frozen copies of the weights (a reference model).
        context: Tokens of the longest row.
        adapters: Their parameters, where they are trained beside frozen weights: float32 without mixed precision.
        holds_base: The frozen weights are not those of another policy beside it; ZeRO 3 divides each policy's.
        autocasts: Passes on a CPU run in bfloat16, with a copy of the float32 weights.
    """
    width = 2 if mixed_precision else BYTES[dtype]
    world, stage = max(1, num_learners), (zero or {}).get("stage", 0)
    trained = trained_parameters(shape, separate_value, critic, adapters)
    held = width if adapters is None or mixed_precision else 4
    masters = held == 2 or stage in (1, 2)  # Stages 1 and 2 keep them beside float32 weights too.
    parts = {
        "weights": trained * held / (world if stage >= 3 else 1),
        "gradients": trained * (4 if stage else held) / (world if stage >= 2 else 1),  # Summed in float32.
        "optimizer": trained * (8 + 4 * masters) / (world if stage >= 1 else 1),
    }
    if adapters is None:
        parts["weights"] += copies * shape.parameters * width / (world if stage >= 3 else 1)
    else:
        base = shape.parameters if holds_base or stage >= 3 else 0
        parts["weights"] += (base * width + copies * adapters * 4) / (world if stage >= 3 else 1)
    if offloaded(zero):
        parts["optimizer"] = trained * (20 if stage >= 3 else 16 + held) / world
        if stage >= 3:
            del parts["gradients"]
    backbones = 2 if separate_value else 1
    layer = shape.layer if adapters is None else shape.layer.frozen()
    kept = kept_per_token(shape.layers, layer, AUTOCAST_WIDTH if autocasts else width, context, gradient_checkpointing)
    parts["activations"] = microbatch_tokens * kept * backbones
    if autocasts:
        parts["weights in bfloat16"] = 2 * shape.parameters * backbones
    head = shape.head * width * (adapters is None)  # A frozen one has no gradient.
    chunk = min(head_chunk_tokens * (1 + observes), microbatch_tokens)
    logits = chunk * shape.vocab_size * (4 if width == 4 and not autocasts else 6)
    # From the second chunk on the head's gradient is added to the sum: three tensors of its size once the logits are
    # gone. The first chunks of replies and of what is observed may exist at once.
    later = chunk < microbatch_tokens or observes
    head_pass = head * later + max(logits + head, 2 * head * later, 2 * logits * constrained_decoding)
    parts["logits"] = head_pass + (WORKSPACE_MIB * MIB if shape.vocab_size else 0)
    if stage:
        parts[ZERO_BUFFERS] = _zero_buffers(zero or {}, trained, width, world, (adapters and shape.parameters) or 0)
    elif world > 1 and (more := parts["gradients"] - parts["activations"] - parts["logits"]) > 0:
        parts["sum of gradients"] = more  # In one copy of them, when activations and logits have gone.
    if stage >= 3 and world > 1:
        states = parts["weights"] + parts["optimizer"] * (not offloaded(zero))
        # A part may have another form in checkpoints.
        whole = (trained + shape.parameters) * width if loads_whole else 0
        peak = sum(parts.values()) - parts["optimizer"] * offloaded(zero)
        if (more := max(whole, states + 2 * shape.largest * width) - peak) > 0:
            parts[START] = more
    return {name: value / MIB for name, value in parts.items()}


def _zero_buffers(zero: Mapping[str, Any], trained: int, width: int, world: int, frozen: int) -> float:
    """Bytes that DeepSpeed's ZeRO optimizers (0.19) take beside the states.

    All stages: the bucket that reduces gradients, twice if communication overlaps. Stages 1 and 2: the learner's share
    of one micro-batch's gradients (all of them at stage 1 in half precision). Stage 3: gathered weights.
    """
    bucket = int(float(zero["reduce_bucket_size"]))
    if zero["stage"] == 3:
        return (bucket + min(trained + frozen, int(float(zero.get("stage3_max_live_parameters", ZERO_3_LIVE))))) * width
    kept = trained / (1 if (zero["stage"], width) == (1, 2) else world)
    return (bucket * (2 if zero.get("overlap_comm") else 1) + kept) * width


def trained_parameters(
    shape: ModelShape, separate_value: bool = False, critic: bool = True, adapters: int | None = None
) -> int:
    """Parameters of a policy and its value function: a head of two layers, and perhaps a backbone of its own.

    Of the policy's own those of its ``adapters`` alone, if it has any.
    """
    own = shape.parameters if adapters is None else adapters
    if not critic:
        return own
    value = shape.hidden_size * (shape.hidden_size + 2) + 1 if shape.hidden_size else 0
    backbone = shape.parameters - (0 if shape.tied else shape.head)
    return own + value + (backbone if separate_value else 0)


def action_values_bytes(
    shape: ModelShape, heads: int, state: bool, slow: bool, separate: bool, chunk: int
) -> tuple[float, float]:
    """What values of tokens take in a learner, float32, with the values of ``chunk`` tokens and their gradients; and in
    an engine, which has the heads and the backbone of their own alone.
    """
    hidden = shape.hidden_size
    inner, backbone = hidden * (hidden + 1), (shape.parameters - (0 if shape.tied else shape.head)) * separate
    q = heads * (inner + (hidden + 1) * shape.vocab_size)
    trained = q + state * (inner + hidden + 1) + backbone
    return 16.0 * trained + 4.0 * slow * (q + backbone) + 8.0 * heads * chunk * shape.vocab_size, 4.0 * (q + backbone)


_ADAPTED: dict[tuple[ModelShape, str], int] = {}


def adapter_parameters(shape: ModelShape, options: LoraOptions) -> int:
    """Parameters of adapters, and of modules trained whole beside them; 0 for a model that is not known.

    Raises: ConfigError: the model has no such modules, or the files to begin with are damaged.
    """
    from rllib_lmgame.policies.model.adapters import trained_parameters

    key = shape, repr(options)
    if key not in _ADAPTED:
        _ADAPTED[key] = 0 if shape.config is None else trained_parameters(options, shape.config)
    return _ADAPTED[key]


def engine_mib(
    shape: ModelShape,
    *,
    dtype: str = "float32",
    split: int = 1,
    kv_cache_mib: float | None = CPU_KV_CACHE_MIB,
    sequences: int = 0,
) -> dict[str, float]:
    """MiB of one engine, on each of its GPUs; ``sequences`` are sampled in one step."""
    parts = {"weights": shape.parameters * BYTES[dtype] / split / MIB}
    if kv_cache_mib is not None:
        parts["kv cache"] = kv_cache_mib
    return parts | {"logits": sequences * shape.vocab_size * 4 * LOGITS_WHILE_SAMPLING / MIB}


def smallest_card(
    learner_gib: float, states_gib: float, engine_gib: float, share: float, sleeps: bool = False, engines: int = 1
) -> float:
    """GiB of the smallest GPU that holds engines and a learner side by side; infinite if there is none.

    ``states_gib`` is what the learner holds between updates, ``engine_gib`` the weights and one whole context of each
    engine, which takes a ``share`` of the card; engines that sleep free it while the learner trains.
    """
    if not share:
        return learner_gib
    left = 1 - share * engines
    if left < 0 or (left == 0 and learner_gib):
        return float("inf")
    least = engine_gib / share
    if not learner_gib:
        return least
    return max(least, max(learner_gib, states_gib / left) if sleeps else learner_gib / left)


def kv_token_mib(shape: ModelShape, *, dtype: str, split: int) -> float:
    """MiB of one token's keys and values; 0 if the shape is unknown."""
    return 2 * shape.layers * shape.kv_size * BYTES[dtype] / split / MIB
