"""Fixtures of the inference tests: a tiny Qwen2 directory and a shared engine of each kind."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.inference.options import InferenceOptions

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))  # For Ray's workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fake_engine import FAKE  # noqa: E402 -- found in the folder just named
from inference_reference import CONTEXT, PIECES, qwen2, tokenizer_of  # noqa: E402


@pytest.fixture(scope="session")
def models() -> tuple[Any, Any]:
    """Two models of one shape with different weights."""
    return qwen2(0), qwen2(1)


@pytest.fixture(scope="session")
def model_dir(models: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first of :func:`models` as a Hugging Face directory, with a tokenizer."""
    directory: Path = tmp_path_factory.mktemp("qwen2")
    models[0].save_pretrained(directory)
    tokenizer_of(PIECES).save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="session")
def transformers_engine(model_dir: str) -> Iterator[Any]:
    """A started Transformers engine; a test that changes its weights puts the first model's back."""
    from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine

    engine = TransformersEngine(model_dir, InferenceOptions(engine="transformers"), context_length=CONTEXT, seed=0)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.shutdown())


@pytest.fixture(scope="module")
def vllm_engine(model_dir: str) -> Iterator[Any]:
    """A started vLLM engine; a test that changes its weights puts the first model's back.

    One for each file: an engine that a test starts for itself takes what all of a process share along when it ends.
    """
    pytest.importorskip("vllm")
    from rllib_lmgame.inference.engines.vllm_engine import VLLMEngine

    engine = VLLMEngine(model_dir, InferenceOptions(kv_cache_memory_mb=32), context_length=CONTEXT, seed=0)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.shutdown())


@pytest.fixture(params=["transformers", "vllm"])
def engine(request: pytest.FixtureRequest) -> Any:
    """Each engine in turn."""
    return request.getfixturevalue(f"{request.param}_engine")


@pytest.fixture
def make_group(ray_cluster: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Function ``(num_engines)`` that starts engines nobody watches; files in ``tmp_path`` control them."""
    from rllib_lmgame.inference.serving.group import EngineGroup

    groups = []

    def make(num_engines: int = 1) -> Any:
        options = InferenceOptions(
            engine=FAKE, num_engines=num_engines, num_cpus_per_engine=0.5, start_timeout_s=60, request_timeout_s=120
        )
        groups.append(EngineGroup.create(f"fake-{tmp_path.name}", str(tmp_path), options, 1000, watch_interval_s=0))
        return groups[-1]

    yield make
    for group in groups:
        group.shutdown()
