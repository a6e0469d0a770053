"""Plain Transformers as an engine: for machines without vLLM, for debugging and for parity tests.

Continuous batching without padding on the left: waiting prompts are prefilled together, then all running replies
advance one token per step. There is no prefix cache.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.inference.engines.threaded import Core, ThreadedEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import (
    ChoiceCursor,
    EngineStats,
    Generation,
    GenerationRequest,
    SamplingSpec,
    StopReason,
)
from rllib_lmgame.inference.weights import check_weights, not_finite, tensors_of
from rllib_lmgame.policies.model.attention import PackedRows
from rllib_lmgame.policies.model.files import parameter_count
from rllib_lmgame.policies.model.heads import (
    VALUES_FILE,
    PlayedValues,
    backbone_of,
    load_values,
    logit_transform,
    split_values,
)
from rllib_lmgame.policies.model.loading import IncompleteModelError, fix_rope, whole_model
from rllib_lmgame.policies.model.network import load_checkpoint_tensors, parts_of
from rllib_lmgame.policies.model.router_replay import replay_in, route_dtype, routers_of


class SlotCache:
    """Rows of a batch read and write their own slots at their own positions; nothing is padded on the left.

    It is a Hugging Face model's ``past_key_values``, whose layers call :meth:`update`. Before each forward pass
    :meth:`aim` says which slots the rows are and where their tokens go. Buffers grow as needed.
    """

    is_compileable = False

    def __init__(self) -> None:
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._slots = torch.zeros(0, dtype=torch.long)
        self._positions = torch.zeros(0, 0, dtype=torch.long)
        self._length = 0

    def aim(self, slots: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        """Choose slots ``[rows]`` and positions ``[rows, queries]``; ``length`` positions of each slot are read."""
        self._slots, self._positions, self._length = slots, positions, length

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store ``[rows, heads, queries, width]``; returns the slots' content ``[rows, heads, length, width]``."""
        return self._put(self._keys, layer_idx, key), self._put(self._values, layer_idx, value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions read; models ask for it only where they are given no positions."""
        return self._length

    def clear(self) -> None:
        self._keys.clear()
        self._values.clear()

    def _put(self, buffers: dict[int, torch.Tensor], layer: int, new: torch.Tensor) -> torch.Tensor:
        buffer = self._grown(buffers.get(layer), new)
        buffers[layer] = buffer
        buffer[self._slots[:, None], self._positions] = new.transpose(1, 2)
        return buffer[self._slots, : self._length].transpose(1, 2)

    def _grown(self, buffer: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        slots = int(self._slots.max()) + 1
        length = max(self._length, int(self._positions.max()) + 1)
        _, heads, _, width = new.shape
        if buffer is None:
            return new.new_zeros(slots, length, heads, width)
        if slots <= buffer.shape[0] and length <= buffer.shape[1]:
            return buffer
        grown = new.new_zeros(_room(slots, buffer.shape[0]), _room(length, buffer.shape[1]), heads, width)
        grown[: buffer.shape[0], : buffer.shape[1]] = buffer
        return grown


def _room(needed: int, have: int) -> int:
    return have if needed <= have else max(needed, have + have // 2)


def processed_logprobs(
    logits: torch.Tensor, specs: Sequence[SamplingSpec], allowed: Sequence[list[int] | None]
) -> torch.Tensor:
    """Log-probabilities after constraint, temperature, top-k and top-p, in that order.

    Args:
        logits: float ``[rows, vocabulary]``; not changed.
        specs: One per row. Temperature 0 gives the numbers of temperature 1 without top-k and top-p.
        allowed: Token ids a row may take, or ``None`` for all.

    Returns: float32 ``[rows, vocabulary]``, ``-inf`` where a token cannot be drawn.
    """
    logits = logits.float()
    if any(ids is not None for ids in allowed):
        logits = torch.stack([_only(row, ids) for row, ids in zip(logits, allowed, strict=True)])
    logits = logits / torch.tensor([[s.temperature or 1.0] for s in specs], device=logits.device)
    for row, spec in enumerate(specs):
        if spec.temperature > 0 and (spec.top_k or spec.top_p < 1):
            logits[row] = _truncate(logits[row], spec)
    return logits.log_softmax(-1)


def draw(
    logprobs: torch.Tensor,
    specs: Sequence[SamplingSpec],
    generators: Sequence[torch.Generator | None],
    shared: torch.Generator,
) -> torch.Tensor:
    """One token per row, int64 ``[rows]``; a row with a generator of its own does not depend on the others."""
    noise = torch.empty_like(logprobs).exponential_(generator=shared)
    for row, generator in enumerate(generators):
        if generator is not None:
            noise[row].exponential_(generator=generator)
    drawn = (logprobs - noise.log()).argmax(-1)  # exponential races: P(token wins) is its probability
    greedy = torch.tensor([s.temperature == 0 for s in specs], device=logprobs.device)
    return torch.where(greedy, logprobs.argmax(-1), drawn)


def _only(row: torch.Tensor, ids: list[int] | None) -> torch.Tensor:
    if ids is None:
        return row
    masked = torch.full_like(row, float("-inf"))
    masked[ids] = row[ids]
    return masked


def _truncate(row: torch.Tensor, spec: SamplingSpec) -> torch.Tensor:
    """``row`` with ``-inf`` outside its k most likely tokens and outside its nucleus (smallest set reaching top_p)."""
    values, order = row.sort(descending=True)
    keep = torch.ones_like(values, dtype=torch.bool)
    if spec.top_k:
        keep &= values >= values[min(spec.top_k, len(values)) - 1]
    probabilities = torch.where(keep, values, -torch.inf).softmax(-1)
    keep &= probabilities.cumsum(-1) - probabilities < spec.top_p
    return torch.full_like(row, float("-inf")).index_copy(0, order[keep], values[keep])


FULL, SLIDING = "full_attention", "sliding_attention"
PREFILL_TOKENS = 4096
"""Prompt tokens computed in one step, unless ``max_num_batched_tokens`` says otherwise."""


@dataclass(slots=True)
class Running:
    request: GenerationRequest
    slot: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    generator: Any = None
    cursor: ChoiceCursor | None = None
    routes: list[np.ndarray] = field(default_factory=list)

    @property
    def last_position(self) -> int:
        return len(self.request.prompt_ids) + len(self.ids) - 1


class TransformersCore(Core):
    """The model and its running replies. Constructing it loads the model."""

    def __init__(
        self, model_dir: str, options: InferenceOptions, context_length: int, seed: int, trust_remote_code: bool
    ) -> None:
        if options.tensor_parallel_size > 1:
            raise ConfigError("inference.tensor_parallel_size", "must be 1 with engine: transformers")
        on_gpu = options.num_gpus_per_engine > 0 and torch.cuda.is_available()
        self._device = torch.device("cuda" if on_gpu else "cpu")
        if not on_gpu:
            torch.set_num_threads(options.threads)
        arguments = {
            "dtype": options.dtype_on(on_gpu, lambda: parameter_count(model_dir)),
            "trust_remote_code": trust_remote_code,
            **options.engine_kwargs,
        }
        self._model = _load_model(model_dir, arguments).to(self._device).eval()
        text = self._model.config.get_text_config(decoder=True)
        self._layer_kinds = set(getattr(text, "layer_types", None) or ())
        self._window = getattr(text, "sliding_window", None)
        others = self._layer_kinds - {FULL, SLIDING} or ({"recurrence"} if self._model._is_stateful else set())
        if others:
            kinds = ", ".join(sorted(others))
            why = f"this {text.model_type} model has layers of another kind ({kinds}); use engine: vllm"
            raise ConfigError("inference.engine", why)
        fix_rope(self._model, context_length)
        replay_in(self._model)
        routers = list(routers_of(self._model).values()) * options.router_replay
        self._routes = (text.num_hidden_layers, routers[0].top_k) if routers else None
        self._route_dtype = route_dtype(routers[0].num_experts if routers else 0)
        self.vocab_size = int(self._model.get_input_embeddings().weight.shape[0])
        self.context_length = context_length
        self._cache = SlotCache()
        self._free = list(range(options.max_num_seqs))[::-1]
        self._waiting: deque[GenerationRequest] = deque()
        self._to_score: deque[GenerationRequest] = deque()
        self._running: dict[str, Running] = {}
        self._prefill_tokens = options.max_num_batched_tokens or PREFILL_TOKENS
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._computed = 0
        self._values: PlayedValues | None = None
        self._value_cache = SlotCache()
        values = load_values(model_dir)
        try:
            self._take_values(values)
        except ValueError as error:
            raise ConfigError("language_model.model", f"{Path(model_dir, VALUES_FILE)}: {error}") from error

    def _take_values(self, tensors: Mapping[str, torch.Tensor]) -> None:
        if not tensors:
            self._values = None
            return
        if name := not_finite(tensors):
            raise ValueError(f"{name} holds NaN or infinity")
        before = None if self._values is None else self._values.backbone
        head = tuple(self._model.get_output_embeddings().weight.shape)
        self._values = PlayedValues(
            tensors, head, self._device, lambda: before or copy.deepcopy(backbone_of(self._model))
        )

    def add(self, request: GenerationRequest) -> None:
        (self._waiting if request.scored is None else self._to_score).append(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        ids = set(request_ids)
        self._waiting = deque(r for r in self._waiting if r.request_id not in ids)
        self._to_score = deque(r for r in self._to_score if r.request_id not in ids)
        for request_id in ids & set(self._running):
            self._release(self._running[request_id])

    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._to_score)

    def step(self) -> Sequence[Generation]:
        """Score replies, else prefill what waits, if there is room, else advance every running reply by one token."""
        if self._to_score:
            return self._score(self._next(self._to_score, len(self._to_score)))
        batch = self._admit()
        if batch:
            return self._forward(batch, [r.request.prompt_ids for r in batch], [0] * len(batch))
        rows = list(self._running.values())
        return self._forward(rows, [[r.ids[-1]] for r in rows], [r.last_position for r in rows])

    def lengths(self) -> Mapping[str, int]:
        return {name: len(running.ids) for name, running in self._running.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        tensors, values = split_values(tensors_of(state))
        own = self._model.state_dict()  # Parameters, and buffers that are part of the model.
        tied = bool(self._model.config.tie_word_embeddings)
        parts = parts_of(self._model, own)
        check_weights(tensors, {name: shape for part in parts for name, shape in part.shapes.items()}, tied)
        load_checkpoint_tensors(self._model, parts, own, tensors)
        self._take_values(values)

    def reset_prefix_cache(self) -> None:
        """There is none."""

    def fill_stats(self, stats: EngineStats) -> None:
        stats.prompt_tokens_computed = self._computed
        stats.running, stats.waiting = len(self._running), len(self._waiting) + len(self._to_score)

    def sleep(self, level: int) -> None:
        """Free the cache and move the weights to host memory (GPU only)."""
        self._cache.clear()
        self._value_cache.clear()
        if self._device.type == "cuda":
            self._to("cpu")

    def wake_up(self, part: str) -> None:
        self._to(self._device)

    def _to(self, device: torch.device | str) -> None:
        self._model.to(device)
        if self._values is not None:
            self._values.to(device)

    def _admit(self) -> list[Running]:
        batch: list[Running] = []
        for request in self._next(self._waiting, len(self._free)):
            running = Running(request, self._free.pop())
            if request.sampling.seed is not None:
                running.generator = torch.Generator(self._device).manual_seed(request.sampling.seed & (2**63 - 1))
            if request.choices is not None:
                running.cursor = ChoiceCursor(request.choices)
            self._running[request.request_id] = running
            self._computed += len(request.prompt_ids)
            batch.append(running)
        return batch

    def _next(self, queue: deque[GenerationRequest], most: int) -> list[GenerationRequest]:
        """Out of a queue at most ``most`` requests, as many as one step takes."""
        batch: list[GenerationRequest] = []
        longest = 0
        while queue and len(batch) < most:
            longest = max(longest, len(queue[0].prompt_ids) + len(queue[0].scored or ()))
            if batch and longest * (len(batch) + 1) > self._prefill_tokens:
                break
            batch.append(queue.popleft())
        return batch

    def _score(self, batch: Sequence[GenerationRequest]) -> list[Generation]:
        """One pass over whole prompts and replies, padded on the right, where no token sees it."""
        whole = [[*r.prompt_ids, *(r.scored or ())] for r in batch]
        ids = np.zeros((len(batch), max(map(len, whole)) - 1), np.int64)
        for row, tokens in enumerate(whole):
            ids[row, : len(tokens) - 1] = tokens[:-1]
            self._computed += len(tokens)
        # Position p predicts the token behind it.
        rows = [row for row, r in enumerate(batch) for _ in r.scored or ()]
        positions = [
            p for r, tokens in zip(batch, whole, strict=True) for p in range(len(r.prompt_ids) - 1, len(tokens) - 1)
        ]
        kept = np.unique(positions)
        with torch.inference_mode():
            if self._values is None:
                inputs = {"input_ids": self._tensor(ids), "use_cache": False, "logits_to_keep": self._tensor(kept)}
                logits = self._model(**inputs).logits
                chosen = logits[self._tensor(rows), self._tensor(np.searchsorted(kept, positions))].float()
            else:
                inputs = {"input_ids": self._tensor(ids), "use_cache": False}
                chosen = self._valued(self._values, inputs, self._tensor(rows), self._tensor(positions))
            targets = self._tensor([token for r in batch for token in r.scored or ()])
            logprobs = chosen.log_softmax(-1).gather(1, targets[:, None])[:, 0].cpu().numpy()
        ends = np.cumsum([len(r.scored or ()) for r in batch])[:-1]
        return [
            Generation(r.request_id, np.array(r.scored, np.int32), part, StopReason.EOS)
            for r, part in zip(batch, np.split(logprobs, ends), strict=True)
        ]

    def _forward(self, rows: list[Running], new_ids: list[list[int]], starts: list[int]) -> list[Generation]:
        """Feed ``new_ids`` of each row from position ``starts`` on, and sample one token per row."""
        counts = np.array([len(ids) for ids in new_ids])
        width, length = int(counts.max()), max(start + len(ids) for start, ids in zip(starts, new_ids, strict=True))
        ids = np.zeros((len(rows), width), np.int64)
        for row, values in enumerate(new_ids):
            ids[row, : len(values)] = values
        offsets = np.arange(width)
        positions = np.array(starts)[:, None] + offsets
        # Padding on the right writes one past what is read: no later token sees it.
        written = np.where(offsets < counts[:, None], positions, length)
        for cache in (self._cache, self._value_cache):
            cache.aim(self._tensor([r.slot for r in rows]), self._tensor(written), length)
        distance = self._tensor(positions)[:, :, None] - self._tensor(np.arange(length))[None, None, :]
        with torch.inference_mode():
            last = np.unique(counts - 1)
            inputs = {
                "input_ids": self._tensor(ids),
                "position_ids": self._tensor(positions),
                "attention_mask": self._masks(distance),
                "use_cache": True,
            }
            if self._values is not None:
                every = torch.arange(len(rows), device=self._device)
                caches = (self._cache, self._value_cache)
                return self._sample(rows, self._valued(self._values, inputs, every, self._tensor(counts - 1), caches))
            with contextlib.nullcontext() if self._routes is None else PackedRows(torch.tensor([0, ids.size])) as step:
                if step is not None and self._routes is not None:
                    step.routes, step.notes_routes = self._tensor(np.full((ids.size, *self._routes), 2**16 - 1)), True
                output = self._model(**inputs, past_key_values=self._cache, logits_to_keep=self._tensor(last))
            if step is not None and step.routes is not None:
                told = step.routes.view(*ids.shape, *step.routes.shape[1:]).cpu().numpy().astype(self._route_dtype)
                for running, tokens, count in zip(rows, told, counts, strict=True):
                    running.routes.append(tokens[:count])
            logits = output.logits[torch.arange(len(rows)), self._tensor(np.searchsorted(last, counts - 1))]
            return self._sample(rows, logits)

    def _valued(
        self,
        values: PlayedValues,
        inputs: Mapping[str, Any],
        rows: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[SlotCache | None] = (None, None),
    ) -> torch.Tensor:
        """The policy's logits ``[n, vocabulary]`` with what the values add, at these ``positions`` of ``rows``."""
        own, theirs = caches
        states = backbone_of(self._model)(**inputs, past_key_values=own).last_hidden_state[rows, positions]
        logits = logit_transform(self._model.config)(self._model.get_output_embeddings()(states))
        if values.backbone is not None:
            states = values.backbone(**inputs, past_key_values=theirs).last_hidden_state[rows, positions]
        return values.added_to(logits, states)

    def _sample(self, rows: list[Running], logits: torch.Tensor) -> list[Generation]:
        specs = [r.request.sampling for r in rows]
        allowed = [r.cursor.allowed(r.ids) if r.cursor else None for r in rows]
        logprobs = processed_logprobs(logits, specs, allowed)
        tokens = draw(logprobs, specs, [r.generator for r in rows], self._generator)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        finished = []
        for row, token, logprob in zip(rows, tokens.tolist(), chosen, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            reason = self._ended(row)
            if reason is not None:
                self._release(row)
                ids, numbers = np.array(row.ids, np.int32), np.array(row.logprobs, np.float32)
                first = row.request.routes_from
                told = None if first is None or not row.routes else np.concatenate(row.routes)[first:]
                finished.append(Generation(row.request.request_id, ids, numbers, reason, routed_experts=told))
        return finished

    def _ended(self, row: Running) -> StopReason | None:
        sampling = row.request.sampling
        if self.stops(sampling, row.ids):
            return StopReason.EOS
        if len(row.ids) >= sampling.max_tokens or row.last_position + 1 >= self.context_length:
            return StopReason.MAX_TOKENS
        return None

    def _release(self, row: Running) -> None:
        del self._running[row.request.request_id]
        self._free.append(row.slot)

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.long, device=self._device)

    def _masks(self, distance: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """What attention adds to scores ``[rows, 1, queries, keys]``; by kind of layer where there are several."""
        full = distance >= 0
        masks = {FULL: full, SLIDING: full if self._window is None else full & (distance < self._window)}
        if self._layer_kinds <= {FULL}:  # With kinds a window is of other layers; without it is of all.
            return self._additive(masks[FULL if self._layer_kinds else SLIDING])[:, None]
        return {kind: self._additive(masks[kind])[:, None] for kind in self._layer_kinds}

    def _additive(self, visible: torch.Tensor) -> torch.Tensor:
        """A mask that both eager and SDPA attention add: 0 where visible, the smallest number elsewhere."""
        hidden = torch.finfo(self._model.dtype).min
        return torch.zeros(visible.shape, dtype=self._model.dtype, device=self._device).masked_fill_(~visible, hidden)


def _load_model(model_dir: str, arguments: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_dir, trust_remote_code=arguments["trust_remote_code"])
    attention = str(arguments.get("attn_implementation") or config._attn_implementation or "")
    if "/" in attention and not arguments["trust_remote_code"]:  # Transformers asks nobody before it runs these.
        why = f"is off, but {model_dir!r} asks for attention code from a hub, {attention!r}"
        raise ConfigError("language_model.trust_remote_code", why)
    if getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None) is not None:
        arguments = {"attn_implementation": "eager", **arguments}  # SDPA would leave the capping out.
    try:
        return whole_model(model_dir, config=config, **arguments)
    except IncompleteModelError as error:
        raise ConfigError("language_model.model", f"{model_dir!r} {error}") from error


class TransformersEngine(ThreadedEngine):
    core_class = TransformersCore
