"""An engine without a model that fails where it is told to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rllib_lmgame.inference.engines.threaded import Core, ThreadedEngine
from rllib_lmgame.inference.options import Engine, InferenceOptions
from rllib_lmgame.inference.protocol import EngineStats, Generation, GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.policies.model.files import ADAPTER_FILES

BAD = 13
"""A prompt token that the fake backend breaks on."""
FAKE = "fake_engine:Fake"
"""``inference.engine`` of an engine that breaks while it generates."""


class FakeCore(Core):
    """Answers every request with token 1 after ``max_tokens`` steps.

    A ``BAD`` prompt raises in the method ``fails_in``. Files in the model's directory control the loading: it raises
    while ``broken`` is there and waits while ``slow`` is; ``loads`` gets a byte for every attempt, ``digests`` one
    whenever weights are digested. While ``differ`` is there, every engine finds other weights. An adapter is refused
    whose first file has the word ``bad``.
    """

    fails_in = ""

    def __init__(
        self, model_dir: str, options: InferenceOptions, context_length: int, seed: int, trust_remote_code: bool
    ) -> None:
        with (Path(model_dir) / "loads").open("a") as loads:
            loads.write("x")
        while (Path(model_dir) / "slow").exists():
            time.sleep(0.02)
        if (Path(model_dir) / "broken").exists():
            raise RuntimeError("out of memory")
        self.vocab_size, self.context_length = 100, context_length
        self.directory, self.seed, self.updating = Path(model_dir), seed, False
        self.running: dict[str, tuple[GenerationRequest, int]] = {}
        self.log: list[str] = []

    def add(self, request: GenerationRequest) -> None:
        self._fail("add", [request])
        self.running[request.request_id] = (request, 0)

    def abort(self, request_ids: Iterable[str]) -> None:
        self._fail("abort", [self.running.pop(i)[0] for i in request_ids])

    def has_work(self) -> bool:
        return bool(self.running)

    def step(self) -> Sequence[Generation]:
        self._fail("step", [request for request, _ in self.running.values()])
        self.running = {name: (request, steps + 1) for name, (request, steps) in self.running.items()}
        done = [name for name, (request, steps) in self.running.items() if steps >= request.sampling.max_tokens]
        return [self._finished(self.running.pop(name)[0]) for name in done]

    def lengths(self) -> Mapping[str, int]:
        return {name: steps for name, (_, steps) in self.running.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.log.append("load")
        if "bad" in state:
            raise ValueError("bad weights")

    def load_adapter(self, name: str, directory: str) -> None:
        if b"bad" in (Path(directory) / ADAPTER_FILES[0]).read_bytes():
            raise ValueError("bad adapter")
        self.adapters = {*self.adapters, name}

    def reset_prefix_cache(self) -> None: ...

    def fill_stats(self, stats: EngineStats) -> None:
        stats.running = len(self.running)

    def request_error(self, request: GenerationRequest) -> str | None:
        self._fail("request_error", [request])
        return super().request_error(request)

    def worker_call(self, method: str, **kwargs: Any) -> None:
        """vLLM's workers in a weight transfer: an update begins once and ends once."""
        self.log.append(method)
        if method in ("start_weight_update", "finish_weight_update"):
            if self.updating is (method == "start_weight_update"):
                raise RuntimeError(f"{method}: an update is{'' if self.updating else ' not'} active")
            self.updating = not self.updating

    def sleep(self, level: int) -> None:
        self.log.append(f"sleep at level {level}")

    def wake_up(self, part: str) -> None:
        self.log.append(f"wake {part}")

    def wait_for(self, event: Any) -> None:
        event.wait(20.0)

    def _fail(self, where: str, requests: Iterable[GenerationRequest]) -> None:
        if where == self.fails_in and any(BAD in request.prompt_ids for request in requests):
            raise KeyError(where)

    def _finished(self, request: GenerationRequest) -> Generation:
        count = request.sampling.max_tokens
        return Generation(
            request.request_id, np.ones(count, np.int32), np.zeros(count, np.float32), StopReason.MAX_TOKENS
        )


class FragileCore(FakeCore):
    """Breaks while it generates."""

    fails_in = "step"


class FakeEngine(ThreadedEngine):
    """An engine that breaks while it generates."""

    core_class = FragileCore


class Fake(Engine):
    """What others know of it."""

    implementation = "fake_engine:FakeEngine"


def request(name: str, *prompt: int, tokens: int = 3) -> GenerationRequest:
    """A request without a seed."""
    return GenerationRequest(name, list(prompt) or [1, 2], SamplingSpec(tokens))


def kill(group: Any, name: str) -> None:
    """SIGKILL one engine of a group."""
    import ray

    os.kill(ray.get(group._handles[name].alive.remote()), signal.SIGKILL)
