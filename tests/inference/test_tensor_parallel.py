"""An engine whose model is split over two workers of one node, or over two of Ray's nodes, on CPUs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from inference_reference import CONTEXT, STOP, generate_all, requests, sound, state_of

from rllib_lmgame.inference.engines import vllm_engine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import SamplingSpec

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


def test_replies_are_those_of_the_whole_model_before_and_after_pushes(
    models: tuple[Any, Any], model_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights come in many parts: layers, and what vLLM makes one of (queries, keys, values), lie across them."""
    sent: list[int] = []
    send = vllm_engine.VLLMCore._send

    def counted(core: Any, function: Any, tensors: Any, *more: bool) -> None:
        sent.append(len(tensors))
        send(core, function, tensors, *more)

    monkeypatch.setattr(vllm_engine.VLLMCore, "_send", counted)
    monkeypatch.setattr(vllm_engine, "PART_BYTES", 20_000)
    options = InferenceOptions(kv_cache_memory_mb=32, tensor_parallel_size=2, num_threads=1)
    engine = vllm_engine.VLLMEngine(model_dir, options, context_length=CONTEXT, seed=0)
    asyncio.run(engine.start())
    spec = SamplingSpec(12, temperature=0.7, stop_token_ids=(STOP,))
    for version, number in enumerate((0, 1, 0)):
        if version:
            asyncio.run(engine.update_weights(state_of(models[number]), version))
        batch = requests(16, spec, prefix=f"split{version}")
        assert sound(models[number], batch, generate_all(engine, batch))
    asyncio.run(engine.shutdown())
    assert sum(sent) == 2 * len(state_of(models[0])) and len(sent) > 6


SCRIPT = """
import sys, threading, time
import ray
from ray.cluster_utils import Cluster
from inference_reference import *
from ray_on_cpus import Executor
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.serving.group import EngineGroup

node = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **node})
cluster.add_node(**node)
ray.init(address=cluster.address, log_to_driver=False)
models = qwen2(0), qwen2(1)
models[0].save_pretrained(sys.argv[1])
options = {"kv_cache_memory_mb": 32, "pipeline_parallel_size": 2, "num_threads": 1}
on_cpus = {"distributed_executor_backend": Executor}
group = EngineGroup.create("divided", sys.argv[1], InferenceOptions(**options, engine_kwargs=on_cpus), CONTEXT)


def sounds_like(model, prefix):
    batch = requests(16, SamplingSpec(12, temperature=0.7, stop_token_ids=(STOP,)), prefix=prefix)
    return sound(models[model], batch, ask(group.names, batch))


def workers():
    return {each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if "Worker" in each["name"]}


assert len(set(ray.util.placement_group_table(group._placement_group)["bundles_to_node_id"].values())) == 2
assert sounds_like(0, "loaded")
group.push(state_of(models[1]), 1)
assert sounds_like(1, "pushed")

batch, replies, before = requests(8, SamplingSpec(200), prefix="running"), [], group.stats()[0].steps
running = threading.Thread(target=lambda: replies.extend(ask(group.names, batch)))
running.start()
while group.stats()[0].steps < before + 20:
    time.sleep(0.01)
group.push(state_of(models[0]), 2)
running.join()
for request, reply in zip(batch, replies):
    ((start, _),) = reply.later_versions
    old = reference_logprobs(models[1], request.prompt_ids, reply.response_ids[: start + 1], request.sampling)
    *same, other = np.abs(old - reply.logprobs[: start + 1])
    assert max(same) <= 1e-5 < 1e-4 < other, (start, max(same), other)

first = workers()
ray.kill(ray.get_actor(max(first), ray.get_runtime_context().namespace))
ask(group.names, requests(1, SamplingSpec(4)))  # It may be answered with an error, as whenever an engine breaks.
while len(workers() - first) < 2:
    time.sleep(0.1)
assert sounds_like(0, "again") and len(first) == len(workers()) == 2
group.shutdown()
ray.shutdown()
cluster.shutdown()
"""


def test_replies_are_the_whole_models_also_after_a_push_in_flight_and_when_a_worker_died(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "model")]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
