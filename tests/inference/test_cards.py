"""Engines on GPUs, as far as CPUs show it: who starts when, what vLLM is asked for, which weights it says it holds."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rllib_lmgame.inference.engines import vllm_engine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.serving import actor
from rllib_lmgame.inference.serving.actor import EngineActor, EngineSpec
from rllib_lmgame.inference.weights import opened


@pytest.mark.parametrize(("gpus", "most"), [(0.4, 1), (1, 3), (0, 3)])
def test_engines_on_one_card_start_one_after_the_other(
    gpus: float, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    starting, at_once = set(), []

    class Slow:
        async def start(self) -> None:
            starting.add(self)
            at_once.append(len(starting))
            for _ in range(100):
                await asyncio.sleep(0)
            starting.remove(self)

    monkeypatch.setattr(actor, "make_engine", lambda spec: Slow())
    options = InferenceOptions(num_gpus_per_engine=gpus)

    async def start() -> None:
        actors = [EngineActor(EngineSpec(f"e{i}", "none", options, 64), restarted=False) for i in range(3)]
        # All engines are made before the first start goes on, unless one waits for another.
        await asyncio.gather(*(each._load() for each in actors))

    asyncio.run(start())
    assert len(at_once) == 3 and (max(at_once) == 1) == (most == 1)


@pytest.mark.parametrize(("free", "shared"), [(10**9, True), (10, False)])
def test_weights_for_several_workers_go_to_disk_where_shared_memory_is_full(
    free: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    core, files = vllm_engine.VLLMCore.__new__(vllm_engine.VLLMCore), []
    core._split, core._over_nodes = True, False

    def rpc(function: Any, args: Any) -> None:
        files.append(os.readlink(args[0][0]))
        files.append(opened(pickle.loads(pickle.dumps(args[0])))["w"])

    core._client = SimpleNamespace(collective_rpc=rpc)
    core._send(vllm_engine.load_into_worker, {"w": torch.arange(3.0)})
    assert files[0].startswith("/dev/shm/") == shared and files[0].endswith(" (deleted)"), "a kill leaves nothing"
    assert files[1].tolist() == [0.0, 1.0, 2.0], "also when the file is closed"
