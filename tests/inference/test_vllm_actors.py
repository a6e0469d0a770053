"""The vLLM engine as an actor: killed and restarted, weights pushed again, no process left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from inference_reference import CONTEXT, STOP, reference_logprobs, requests, state_of

from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.inference.serving.client import EngineClient
from rllib_lmgame.settings.sections.inference import InferenceOptions

pytest.importorskip("vllm")
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def group(ray_cluster: Any, model_dir: str) -> Iterator[Any]:
    from rllib_lmgame.inference.serving.group import EngineGroup

    options = InferenceOptions(kv_cache_memory_mb=32, num_cpus_per_engine=1, start_timeout_s=180)
    group = EngineGroup.create("vllm", model_dir, options, CONTEXT)
    yield group
    group.shutdown()


def ask(group: Any, batch: list[GenerationRequest]) -> list[Generation]:
    async def run() -> list[Generation]:
        client = EngineClient(group.names)
        return list(await asyncio.gather(*(client.generate(r) for r in batch)))

    return asyncio.run(run())


def check(model: Any, batch: list[GenerationRequest], generations: list[Generation]) -> None:
    for request, generation in zip(batch, generations, strict=True):
        assert generation.stop_reason is not StopReason.ENGINE_ERROR, generation.error
        expected = reference_logprobs(
            model, request.prompt_ids, generation.response_ids, request.sampling, request.choices
        )
        np.testing.assert_allclose(expected, generation.logprobs, atol=1e-5)


def test_push_and_generate_with_choices(group: Any, models: Any) -> None:
    choices = ((5, 6, STOP), (5, 7, STOP), (8, STOP))
    batch = [
        *requests(100, SamplingSpec(8, temperature=0.7, top_p=0.9), prefix="actor"),
        *requests(20, SamplingSpec(8, stop_token_ids=(STOP,)), prefix="choice", choices=choices),
    ]
    result = group.push(state_of(models[1]), 2)
    generations = ask(group, batch)
    assert {g.policy_version for g in generations} == {2}
    assert {tuple(g.response_ids.tolist()) for g in generations[100:]} <= set(choices)
    check(models[1], batch, generations)
    assert result.num_bytes > 0 and result.lost == ()


def test_killed_while_generating_it_comes_back_with_its_weights(group: Any, models: Any) -> None:
    group.push(state_of(models[1]), 3)
    handle = ray.get_actor(group.names[0])
    pid = ray.get(handle.alive.remote())
    assert psutil.Process(pid).children(recursive=True) == []  # nothing that could outlive the actor

    async def run() -> list[Generation]:
        client = EngineClient(group.names)
        running = [asyncio.ensure_future(client.generate(r)) for r in requests(20, SamplingSpec(200), prefix="killed")]
        while (await handle.stats.remote()).running == 0:
            pass
        os.kill(pid, signal.SIGKILL)
        lost = await asyncio.gather(*running)
        assert all(g.stop_reason is StopReason.ENGINE_ERROR and group.names[0] in g.error for g in lost)
        return list(await asyncio.gather(*(client.generate(r) for r in requests(5, SamplingSpec(4), prefix="again"))))

    generations = asyncio.run(run())
    assert {g.policy_version for g in generations} == {3}
    check(models[1], requests(5, SamplingSpec(4), prefix="again"), generations)
    assert not psutil.pid_exists(pid)
