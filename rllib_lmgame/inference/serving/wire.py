"""Requests and replies as few flat objects: what crosses a process boundary once per tick.

Pickling hundreds of small arrays and dataclasses costs more than sampling a token of a small model; bytes cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason

Packed = tuple[Any, ...]

_REASONS = tuple(StopReason)
_REASON_INDEX = {reason: i for i, reason in enumerate(_REASONS)}


def encode_requests(requests: Sequence[GenerationRequest]) -> Packed:
    """Pack requests; prompts as one int64 array, equal sampling specs once."""
    specs: dict[SamplingSpec, int] = {}
    index = [specs.setdefault(r.sampling, len(specs)) for r in requests]
    prompts = np.fromiter(
        (t for r in requests for t in r.prompt_ids), np.int64, sum(len(r.prompt_ids) for r in requests)
    )
    choices = {i: r.choices for i, r in enumerate(requests) if r.choices is not None}
    scored = {i: r.scored for i, r in enumerate(requests) if r.scored is not None}
    fields = [(s.max_tokens, s.temperature, s.top_p, s.top_k, s.stop_token_ids, s.seed) for s in specs]
    return (
        [r.request_id for r in requests],
        [len(r.prompt_ids) for r in requests],
        prompts.tobytes(),
        fields,
        index,
        choices,
        scored,
    )


def decode_requests(packed: Packed) -> list[GenerationRequest]:
    """Undo :func:`encode_requests`."""
    request_ids, lengths, prompts, fields, index, choices, scored = packed
    specs = [SamplingSpec(*values) for values in fields]
    tokens = np.frombuffer(prompts, np.int64).tolist()
    requests, start = [], 0
    for i, (request_id, length) in enumerate(zip(request_ids, lengths, strict=True)):
        prompt = tokens[start : start + length]
        requests.append(GenerationRequest(request_id, prompt, specs[index[i]], choices.get(i), scored.get(i)))
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
    )


def decode_generations(packed: Packed) -> list[Generation]:
    """Undo :func:`encode_generations`. The arrays of one message share memory."""
    request_ids, lengths, ids, logprobs, reasons, versions, errors = packed
    all_ids, all_logprobs = np.frombuffer(ids, np.int32), np.frombuffer(logprobs, np.float32)
    generations, start = [], 0
    for i, (request_id, length) in enumerate(zip(request_ids, lengths, strict=True)):
        end = start + length
        generations.append(
            Generation(
                request_id,
                all_ids[start:end],
                all_logprobs[start:end],
                _REASONS[reasons[i]],
                versions[i],
                errors.get(i),
            )
        )
        start = end
    return generations
