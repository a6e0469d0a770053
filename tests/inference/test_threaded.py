"""The thread between a backend and its callers, with a backend that fails where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import BAD, FakeCore, request

from rllib_lmgame.inference.engines.threaded import ThreadedEngine
from rllib_lmgame.inference.protocol import EngineDeadError, Generation, StopReason
from rllib_lmgame.settings.sections.inference import InferenceOptions

TIMEOUT_S = 120.0


@pytest.fixture
def engine_that_fails_in(tmp_path) -> Callable[..., ThreadedEngine]:
    """Function ``(where)`` that makes an engine whose backend raises there."""

    def make(where: str = "") -> ThreadedEngine:
        core = type("Failing", (FakeCore,), {"fails_in": where})
        return type("FakeEngine", (ThreadedEngine,), {"core_class": core})(
            str(tmp_path), InferenceOptions(), context_length=1000
        )

    return make


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
def test_a_request_the_backend_raises_on_fails_alone(engine_that_fails_in: Any, where: str) -> None:
    engine = engine_that_fails_in(where)

    async def play() -> list[Generation]:
        replies = await asyncio.gather(*(engine.generate(r) for r in (request("a"), request("bad", BAD), request("b"))))
        await engine.health()
        return [*replies, await engine.generate(request("bad", 1))]

    a, bad, b, again = run(engine, play)
    assert bad.stop_reason is StopReason.ENGINE_ERROR and where in bad.error
    assert [len(r.response_ids) for r in (a, b, again)] == [3, 3, 3]


@pytest.mark.parametrize("where", ["step", "abort"])
def test_a_backend_that_breaks_answers_everybody_and_says_so(engine_that_fails_in: Any, where: str) -> None:
    engine = engine_that_fails_in(where)

    async def play() -> tuple[list[Any], Generation]:
        waiting = [
            asyncio.ensure_future(engine.generate(r))
            for r in (request("a", tokens=10**9), request("bad", BAD, tokens=10**9))
        ]
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
def test_a_caller_that_gives_up_waiting_harms_nobody(engine_that_fails_in: Any, method: str) -> None:
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


def test_whoever_waits_when_the_engine_is_stopped_is_told(engine_that_fails_in: Any) -> None:
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


def test_what_was_asked_before_a_failed_start_is_answered(engine_that_fails_in: Any, tmp_path) -> None:
    (tmp_path / "broken").touch()
    engine = engine_that_fails_in()

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
