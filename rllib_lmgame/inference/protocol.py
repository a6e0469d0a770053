"""What is asked of an inference engine and answered.

Token ids in, token ids and log-probabilities out; an engine (:class:`~.engines.threaded.ThreadedEngine`) never sees
text, games or RLlib. In order: requests and replies, what a constrained token was chosen among, how they are packed.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np


class StopReason(enum.StrEnum):
    """Why a reply, or an episode, ended."""

    EOS = "eos"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    TOKEN_BUDGET = "token_budget"
    GAME_OVER = "game_over"
    MAX_TURNS = "max_turns"
    FORFEIT = "forfeit"
    TIMEOUT = "timeout"
    ENV_ERROR = "env_error"
    ENV_BUSY = "env_busy"
    ENGINE_ERROR = "engine_error"


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How one reply is sampled. `temperature` 0 is greedy.

    `stop_token_ids` end the reply and are part of it, as is the token that completes one of `stop_strings` (of ASCII)
    behind the reply's reasoning. `reasoning` has its two marks, and what the prompt made the reply begin with.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    stop_strings: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One reply to sample; ``request_id`` is unique over the whole run.

    Attributes:
        choices: If given, the reply is one of these token sequences (legal moves), each with what ends it, and
            log-probabilities are those under the constraint.
        scored: If given, nothing is sampled: the reply is these tokens, with the model's log-probabilities at
            temperature 1 over the whole vocabulary.
        adapter: Which of an engine's adapters replies. It does not travel: a client asks for one alone.
        routes_from: If given, the experts of tokens from this place of the prompt on are wanted.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingSpec
    choices: tuple[tuple[int, ...], ...] | None = None
    scored: tuple[int, ...] | None = None
    adapter: str | None = None
    routes_from: int | None = None


Versions = tuple[tuple[int, int], ...]
"""Number of a token in its reply, and the version of the weights that sampled it and those behind it."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled reply, or the one that was to be scored (``stop_reason`` is then ``EOS``).

    Attributes:
        response_ids: int32 ``[tokens]``, the stop token included if there was one.
        logprobs: float32 ``[tokens]``, of each token under the distribution it was sampled from.
        stop_reason: ``EOS`` (a stop token or text), ``MAX_TOKENS``, or ``ENGINE_ERROR`` with a message in ``error``.
        policy_version: Version of the weights that sampled the first token.
        later_versions: Where the weights changed in flight: the first token and the version of each other stretch.
        allowed: What each token was chosen among, if there were choices. Who asked fills it in, not the engine.
        routed_experts: uint8 or uint16 ``[n, layers, k]``, of tokens from ``routes_from`` on but for the last one,
            which the engine has not computed. ``None``: it has no experts, or does not tell.
    """

    request_id: str
    response_ids: np.ndarray
    logprobs: np.ndarray
    stop_reason: StopReason
    policy_version: int = 0
    error: str | None = None
    allowed: AllowedTokens | None = None
    routed_experts: np.ndarray | None = None
    later_versions: Versions = ()


@dataclass
class EngineStats:
    """Counters since the engine started; all monotonic except the two gauges at the end."""

    requests: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0
    running: int = 0
    waiting: int = 0


class EngineDeadError(RuntimeError):
    """The engine cannot serve any more; it has to be started anew."""


class WeightUpdateError(RuntimeError):
    """New weights were not loaded; the engine refuses to serve until good ones arrive."""


def failed(request_id: str, error: str, version: int) -> Generation:
    """A generation without tokens that says why."""
    return Generation(
        request_id, np.zeros(0, np.int32), np.zeros(0, np.float32), StopReason.ENGINE_ERROR, version, error
    )


Choices = tuple[tuple[int, ...], ...]

_KEPT = 4096
"""Lists of allowed tokens that are kept, to be shared by equal replies."""


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """What each of ``n`` tokens was chosen among: a list of ids per token, end to end.

    ``counts`` int32 ``[n]``: 1 where the token was forced, 0 where all could follow. ``ids``: int32 ``[sum(counts)]``.
    """

    counts: np.ndarray
    ids: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[tuple[AllowedTokens | None, int]]) -> AllowedTokens | None:
        """Those of stretches end to end, each with its number of tokens; ``None`` if none was constrained."""
        constrained = [allowed.ids for allowed, _ in parts if allowed is not None]
        if not constrained:
            return None
        counts = [np.zeros(tokens, np.int32) if allowed is None else allowed.counts for allowed, tokens in parts]
        return cls(np.concatenate(counts), np.concatenate(constrained))


class ChoiceCursor:
    """Position of one reply in the trie of its choices, the same for all engines."""

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        self._root: dict[int, dict] = {}
        for choice in choices:
            node = self._root
            for token in choice:
                node = node.setdefault(token, {})
        self._node = self._root
        self._read = 0

    def allowed(self, reply: Sequence[int]) -> list[int]:
        """Tokens that may follow ``reply``; empty once a choice is complete. A growing reply is read once."""
        if len(reply) < self._read:
            self._node, self._read = self._root, 0
        for token in reply[self._read :]:
            self._node = self._node.get(token, {})
            self._read += 1
        return list(self._node)


def allowed_tokens(choices: Choices, reply: tuple[int, ...]) -> AllowedTokens:
    """What each token of ``reply`` was chosen among; equal lists are one object. Raises: ValueError: it is none."""
    cursor = ChoiceCursor(choices)
    steps = [cursor.allowed(reply[:position]) for position in range(len(reply))]
    if cursor.allowed(reply) or not all(token in ids for token, ids in zip(reply, steps, strict=True)):
        raise ValueError(f"the reply {reply} is none of the {len(choices)} choices")
    counts = np.array([len(ids) for ids in steps], np.int32)
    return AllowedTokens(
        _shared(counts.tobytes()), _shared(np.array([token for ids in steps for token in ids], np.int32).tobytes())
    )


@lru_cache(maxsize=_KEPT)
def _shared(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.int32)


Packed = tuple[Any, ...]

_REASONS = tuple(StopReason)
_REASON_INDEX = {reason: i for i, reason in enumerate(_REASONS)}


def encode_requests(requests: Sequence[GenerationRequest]) -> Packed:
    """Pack requests: prompts as one array, equal sampling once. Pickling objects would cost more than sampling."""
    specs: dict[SamplingSpec, int] = {}
    index = [specs.setdefault(r.sampling, len(specs)) for r in requests]
    prompts = np.fromiter(
        (t for r in requests for t in r.prompt_ids), np.int64, sum(len(r.prompt_ids) for r in requests)
    )
    choices = {i: r.choices for i, r in enumerate(requests) if r.choices is not None}
    scored = {i: r.scored for i, r in enumerate(requests) if r.scored is not None}
    fields = [
        (s.max_tokens, s.temperature, s.top_p, s.top_k, s.stop_token_ids, s.seed, s.stop_strings, s.reasoning)
        for s in specs
    ]
    return (
        [r.request_id for r in requests],
        [len(r.prompt_ids) for r in requests],
        prompts.tobytes(),
        fields,
        index,
        choices,
        scored,
        [r.routes_from for r in requests],
    )


def decode_requests(packed: Packed) -> list[GenerationRequest]:
    request_ids, lengths, prompts, fields, index, choices, scored, routes = packed
    specs = [SamplingSpec(*values) for values in fields]
    tokens = np.frombuffer(prompts, np.int64).tolist()
    requests, start = [], 0
    for i, (request_id, length) in enumerate(zip(request_ids, lengths, strict=True)):
        prompt = tokens[start : start + length]
        own = (specs[index[i]], choices.get(i), scored.get(i))
        requests.append(GenerationRequest(request_id, prompt, *own, routes_from=routes[i]))
        start += length
    return requests


def encode_generations(generations: Sequence[Generation]) -> Packed:
    """Pack replies; tokens and log-probabilities as one array each."""
    return (
        [g.request_id for g in generations],
        [len(g.response_ids) for g in generations],
        b"".join(g.response_ids.astype(np.int32, copy=False).tobytes() for g in generations),
        b"".join(g.logprobs.astype(np.float32, copy=False).tobytes() for g in generations),
        bytes(_REASON_INDEX[g.stop_reason] for g in generations),
        [g.policy_version for g in generations],
        {i: g.error for i, g in enumerate(generations) if g.error is not None},
        {i: g.routed_experts for i, g in enumerate(generations) if g.routed_experts is not None},
        {i: g.later_versions for i, g in enumerate(generations) if g.later_versions},
    )


def decode_generations(packed: Packed) -> list[Generation]:
    """Undo :func:`encode_generations`. The arrays of one message share memory."""
    request_ids, lengths, ids, logprobs, reasons, versions, errors, routes, later = packed
    all_ids, all_logprobs = np.frombuffer(ids, np.int32), np.frombuffer(logprobs, np.float32)
    generations, start = [], 0
    for i, (request_id, length) in enumerate(zip(request_ids, lengths, strict=True)):
        part, start = slice(start, start + length), start + length
        own = (all_ids[part], all_logprobs[part], _REASONS[reasons[i]], versions[i], errors.get(i))
        more = {"routed_experts": routes.get(i), "later_versions": later.get(i, ())}
        generations.append(Generation(request_id, *own, **more))
    return generations
