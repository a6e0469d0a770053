"""An engine whose model is split over two workers, on CPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inference_reference import CONTEXT, STOP, generate_all, qwen2, requests, sound, state_of

from rllib_lmgame.inference.engines import vllm_engine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import SamplingSpec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def split_models() -> tuple[Any, Any]:
    return qwen2(0), qwen2(1)


@pytest.fixture(scope="module")
def split_engine(split_models: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("vllm")
    directory: Path = tmp_path_factory.mktemp("split")
    split_models[0].save_pretrained(directory)
    options = InferenceOptions(kv_cache_memory_mb=32, tensor_parallel_size=2, num_threads=1)
    engine = vllm_engine.VLLMEngine(str(directory), options, context_length=CONTEXT, seed=0)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.shutdown())


def test_replies_are_those_of_the_whole_model_before_and_after_pushes(
    split_engine: Any, split_models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights come in many parts: layers, and what vLLM makes one of (queries, keys, values), lie across them."""
    sent: list[int] = []
    send = vllm_engine.VLLMCore._send

    def counted(core: Any, function: Any, tensors: Any, *more: bool) -> None:
        sent.append(len(tensors))
        send(core, function, tensors, *more)

    monkeypatch.setattr(vllm_engine.VLLMCore, "_send", counted)
    monkeypatch.setattr(vllm_engine, "PART_BYTES", 20_000)
    spec = SamplingSpec(12, temperature=0.7, stop_token_ids=(STOP,))
    for version, number in enumerate((0, 1, 0)):
        state: dict[str, np.ndarray] = state_of(split_models[number])
        if version:
            asyncio.run(split_engine.update_weights(state, version))
        batch = requests(16, spec, prefix=f"split{version}")
        assert sound(split_models[number], batch, generate_all(split_engine, batch))
    assert sum(sent) == 2 * len(state) and len(sent) > 6
