"""Factors of long RoPE are the same in sampler and learner, on both sides of the length the model was trained with."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
import torch
from inference_reference import generate_all
from transformers import AutoModelForCausalLM, Phi3Config

from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.rows import build_rows
from rllib_lmgame.rollouts.records import Trajectory, Turn
from rllib_lmgame.settings.sections.inference import InferenceOptions

ORIGINAL = 32
SCALING = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 16,
    "long_factor": [4.0 + n for n in range(16)],
    "original_max_position_embeddings": ORIGINAL,
}


@pytest.fixture(scope="module")
def phi3_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = Phi3Config(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=4 * ORIGINAL,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters=SCALING,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    directory = tmp_path_factory.mktemp("phi3")
    model.save_pretrained(directory)
    return str(directory)


def start(kind: str, directory: str, context: int) -> Any:
    if kind == "vllm":
        pytest.importorskip("vllm")
        from rllib_lmgame.inference.engines.vllm_engine import VLLMEngine

        return VLLMEngine(directory, InferenceOptions(kv_cache_memory_mb=32), context_length=context, seed=0)
    from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine

    return TransformersEngine(directory, InferenceOptions(engine="transformers"), context_length=context, seed=0)


@pytest.mark.parametrize("context", [ORIGINAL, 3 * ORIGINAL])
@pytest.mark.parametrize("kind", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def test_sampler_and_learner_agree(kind: str, context: int, phi3_dir: str) -> None:
    import gymnasium as gym

    from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule

    rng = np.random.default_rng(0)
    spec = SamplingSpec(8, temperature=1.0)
    lengths = [5, 11, context - 9] * 2
    asked = [GenerationRequest(f"r{n}", rng.integers(3, 96, length).tolist(), spec) for n, length in enumerate(lengths)]
    engine = start(kind, phi3_dir, context)
    asyncio.run(engine.start())
    try:
        replies = generate_all(engine, asked)
    finally:
        asyncio.run(engine.shutdown())
    turns = [
        Turn(np.array(request.prompt_ids, np.int32), reply.response_ids, reply.logprobs, new_row=True)
        for request, reply in zip(asked, replies, strict=True)
    ]
    rows = build_rows([Trajectory([turn], terminated=True) for turn in turns], max_row_tokens=context)
    batch = TokenBatch.from_rows(rows)
    space = gym.spaces.Text(4)
    config = {"options": {"context_length": context}, "model_dir": phi3_dir}
    module = LanguageModelRLModule(
        observation_space=space, action_space=space, model_config=config, inference_only=False
    )
    (pack,) = batch.microbatches(1000)
    with torch.no_grad():
        batch.put(pack, old_logprobs=module.forward_train(pack.to_torch())["logprobs"].numpy())
    assert math.isclose(np.abs(batch.old_logprobs - batch.rollout_logprobs).max(), 0.0, abs_tol=1e-4)
