"""Engines take mixtures of experts by the names that these have in a checkpoint, as learners and leagues send them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inference_reference import CONTEXT, STOP, VOCAB, generate_all, reference_logprobs, requests
from safetensors.torch import load_file

from rllib_lmgame.inference.protocol import SamplingSpec
from rllib_lmgame.inference.serving.actor import EngineSpec, make_engine
from rllib_lmgame.settings.sections.inference import InferenceOptions

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": STOP,
    "pad_token_id": 2,
    "num_experts_per_tok": 2,
}
EXPERTS = {"qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32}, "mixtral": {"num_local_experts": 4}}


@pytest.fixture(params=EXPERTS)
def make_mixture(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], tuple[Any, Path]]:
    """Function ``(seed)`` that makes a random mixture of experts, and the directory it is saved in."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def make(seed: int) -> tuple[Any, Path]:
        torch.manual_seed(seed)
        config = AutoConfig.for_model(request.param, **SIZES, **EXPERTS[request.param])
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.15)
        model.save_pretrained(tmp_path / str(seed))
        return model, tmp_path / str(seed)

    return make


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_experts_are_replaced(engine: str, make_mixture: Callable[[int], tuple[Any, Path]]) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm")
        from vllm.distributed.parallel_state import destroy_model_parallel

        destroy_model_parallel()  # An engine of a dense model in this process has left no group for experts.
    (first, directory), (second, other) = make_mixture(0), make_mixture(1)
    options = InferenceOptions(engine=engine, kv_cache_memory_mb=32)
    made = make_engine(EngineSpec("e", str(directory), options, CONTEXT))

    def check(model: Any, prefix: str) -> None:
        batch = requests(8, SamplingSpec(12, stop_token_ids=(STOP,)), prefix=prefix)
        for request, reply in zip(batch, generate_all(made, batch), strict=True):
            assert reply.error is None
            expected = reference_logprobs(model, request.prompt_ids, reply.response_ids, request.sampling)
            assert abs(expected - reply.logprobs).max() <= 1e-5

    asyncio.run(made.start())
    try:
        check(first, "before")
        asyncio.run(made.update_weights(load_file(other / "model.safetensors"), 1))
        check(second, "after")
    finally:
        asyncio.run(made.shutdown())
