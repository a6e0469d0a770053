"""What an engine replies, and what the model in a directory thinks of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np


def reply_of(group: Any, seed: int | None = 3) -> tuple[list[int], np.ndarray, int]:
    """Prompt and reply ids of an engine, their log-probabilities, and the version of the weights."""
    from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec
    from rllib_lmgame.inference.serving.client import EngineClient

    prompt = list(range(5, 25))

    async def ask() -> Any:
        client = EngineClient(group.names, request_timeout_s=60)
        return await client.generate(GenerationRequest("a/0", prompt, SamplingSpec(max_tokens=12, seed=seed)))

    reply = asyncio.run(ask())
    assert reply.error is None, reply.error
    return prompt + list(map(int, reply.response_ids)), reply.logprobs, reply.policy_version


def logprobs_by(directory: Path, ids: list[int], count: int) -> np.ndarray:
    """What the model in a Hugging Face directory gives the last ``count`` of ``ids``."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return np.array([float(scores[i - 1, ids[i]]) for i in range(len(ids) - count, len(ids))])
