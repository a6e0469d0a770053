"""The thread between a backend and its callers, with a backend that fails where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rllib_lmgame.inference.core import Core, EngineDeadError, Finished
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import EngineStats, Generation, GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.inference.threaded import ThreadedEngine

BAD = 13
"""A prompt token that the fake backend breaks on."""
TIMEOUT_S = 20.0


class FakeCore(Core):
    """Answers every request with token 1 after ``max_tokens`` steps; ``fails_in`` names the method that raises on a ``BAD`` prompt."""

    fails_in = ""

    def __init__(self, model_dir: str, options: InferenceOptions, context_length: int, seed: int) -> None:
        if self.fails_in == "init":
            raise RuntimeError("out of memory")
        self.vocab_size, self.context_length = 100, context_length
        self.running: dict[str, tuple[GenerationRequest, int]] = {}

    def add(self, request: GenerationRequest) -> None:
        self._fail("add", [request])
        self.running[request.request_id] = (request, 0)

    def abort(self, request_ids: Iterable[str]) -> None:
        self._fail("abort", [self.running.pop(i)[0] for i in request_ids])

    def has_work(self) -> bool:
        return bool(self.running)

    def step(self) -> Sequence[Finished]:
        self._fail("step", [request for request, _ in self.running.values()])
        self.running = {name: (request, steps + 1) for name, (request, steps) in self.running.items()}
        done = [name for name, (request, steps) in self.running.items() if steps >= request.sampling.max_tokens]
        return [self._finished(self.running.pop(name)[0]) for name in done]

    def load(self, state: Mapping[str, Any]) -> None: ...

    def reset_prefix_cache(self) -> None: ...

    def fill_stats(self, stats: EngineStats) -> None:
        stats.running = len(self.running)

    def request_error(self, request: GenerationRequest) -> str | None:
        self._fail("request_error", [request])
        return super().request_error(request)

    def wait_for(self, event: Any) -> None:
        event.wait(TIMEOUT_S)

    def _fail(self, where: str, requests: Iterable[GenerationRequest]) -> None:
        if where == self.fails_in and any(BAD in request.prompt_ids for request in requests):
            raise KeyError(where)

    def _finished(self, request: GenerationRequest) -> Finished:
        count = request.sampling.max_tokens
        return Finished(request.request_id, np.ones(count, np.int32), np.zeros(count, np.float32), StopReason.MAX_TOKENS)


def engine_that_fails_in(where: str = "") -> ThreadedEngine:
    core = type("Failing", (FakeCore,), {"fails_in": where})
    return type("FakeEngine", (ThreadedEngine,), {"core_class": core})("none", InferenceOptions(), context_length=1000)


def request(name: str, *prompt: int, tokens: int = 3) -> GenerationRequest:
    return GenerationRequest(name, list(prompt) or [1, 2], SamplingSpec(tokens))


def run(engine: ThreadedEngine, play: Callable[[], Any]) -> Any:
    """Result of ``play()`` with the engine started; the engine is stopped afterwards."""

    async def whole() -> Any:
        await engine.start()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await play()
        finally:
            await engine.shutdown()

    return asyncio.run(whole())


@pytest.mark.parametrize("where", ["add", "request_error"])
def test_a_request_the_backend_raises_on_fails_alone(where: str) -> None:
    engine = engine_that_fails_in(where)

    async def play() -> list[Generation]:
        replies = await asyncio.gather(*(engine.generate(r) for r in (request("a"), request("bad", BAD), request("b"))))
        await engine.health()
        return [*replies, await engine.generate(request("bad", 1))]

    a, bad, b, again = run(engine, play)
    assert bad.stop_reason is StopReason.ENGINE_ERROR and where in bad.error
    assert [len(r.response_ids) for r in (a, b, again)] == [3, 3, 3]


@pytest.mark.parametrize("where", ["step", "abort"])
def test_a_backend_that_breaks_answers_everybody_and_says_so(where: str) -> None:
    engine = engine_that_fails_in(where)

    async def play() -> tuple[list[Any], Generation]:
        waiting = [asyncio.ensure_future(engine.generate(r)) for r in (request("a", tokens=10**9), request("bad", BAD, tokens=10**9))]
        pause = asyncio.ensure_future(engine.pause())
        await asyncio.sleep(0)
        engine.abort(["bad"] if where == "abort" else [])
        replies = await asyncio.gather(waiting[0], pause, return_exceptions=True)
        waiting[1].cancel()
        for broken in (engine.health, engine.pause, engine.stats):
            with pytest.raises(EngineDeadError, match=f"broke: KeyError: '{where}'"):
                await broken()
        return replies, await engine.generate(request("late"))

    (reply, paused), late = run(engine, play)
    assert isinstance(paused, EngineDeadError)
    assert all(g.stop_reason is StopReason.ENGINE_ERROR and where in g.error for g in (reply, late))


@pytest.mark.parametrize("method", ["stats", "pause"])
def test_a_caller_that_gives_up_waiting_harms_nobody(method: str) -> None:
    import threading

    engine, event = engine_that_fails_in(), threading.Event()

    async def play() -> Generation:
        busy = asyncio.ensure_future(engine.call("wait_for", event))
        await asyncio.sleep(0)
        given_up = asyncio.ensure_future(getattr(engine, method)())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        event.set()
        await busy
        await engine.resume()
        await engine.health()
        return await engine.generate(request("a"))

    assert run(engine, play).stop_reason is StopReason.MAX_TOKENS


def test_whoever_waits_when_the_engine_is_stopped_is_told() -> None:
    engine = engine_that_fails_in()

    async def play() -> list[Any]:
        running = asyncio.ensure_future(engine.generate(request("a", tokens=10**9)))
        pause = asyncio.ensure_future(engine.pause())
        await asyncio.sleep(0)
        await engine.shutdown()
        return await asyncio.gather(running, pause, return_exceptions=True)

    reply, paused = run(engine, play)
    assert "shut down" in reply.error and isinstance(paused, EngineDeadError)
    assert "shut down" in asyncio.run(engine.generate(request("late"))).error


def test_what_was_asked_before_a_failed_start_is_answered() -> None:
    engine = engine_that_fails_in("init")

    async def play() -> Generation:
        early = asyncio.ensure_future(engine.generate(request("early")))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="out of memory"):
            await engine.start()
        with pytest.raises(EngineDeadError, match="out of memory"):
            await engine.health()
        async with asyncio.timeout(TIMEOUT_S):
            return await early

    assert "out of memory" in asyncio.run(play()).error
