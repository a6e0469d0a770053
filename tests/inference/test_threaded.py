"""The thread between a backend and its callers, with a backend that fails where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engine import BAD, FAKE, FakeCore, request

from rllib_lmgame.inference.engines.threaded import ThreadedEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import (
    EngineDeadError,
    Generation,
    StopReason,
    WeightUpdateError,
    decode_generations,
    encode_requests,
)
from rllib_lmgame.inference.serving.actor import EngineActor, EngineSpec
from rllib_lmgame.inference.weights import AdapterBundle, WeightBundle, pack_state
from rllib_lmgame.policies.model.files import ADAPTER_FILES

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


class Telling(FakeCore):
    """Each token is the number of loads before it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.said: dict[str, list[int]] = {}
        self.loaded = 0

    def load(self, state: Any) -> None:
        self.loaded += 1
        super().load(state)

    def step(self) -> Any:
        if self.loaded < 3 and any(len(said) == 4000 for said in self.said.values()):
            return []  # Nobody ends before the last load, however late it comes.
        for name in self.running:
            self.said.setdefault(name, []).append(self.loaded)
        done = super().step()
        return [replace(reply, response_ids=np.array(self.said[reply.request_id], np.int32)) for reply in done]


def test_each_token_has_the_version_of_its_weights(tmp_path) -> None:
    """Whatever runs, waits or comes while weights change, once, twice between two steps, or not at all."""
    engine: Any = type("FakeEngine", (ThreadedEngine,), {"core_class": Telling})(
        str(tmp_path), InferenceOptions(), context_length=1000
    )

    async def lengths() -> dict[str, int]:
        found: dict[str, int] = await engine._call(lambda core: core.lengths())
        return found

    async def play() -> list[Generation]:
        asked = [asyncio.ensure_future(engine.generate(request(f"r{n}", tokens=5000))) for n in range(3)]
        while len(found := await lengths()) < 3 or min(found.values()) < 5:
            await asyncio.sleep(0)
        await engine.update_weights({}, 1)
        await engine.pause(drain=False)
        stopped = await lengths()
        asked.append(asyncio.ensure_future(engine.generate(request("held", tokens=10))))
        await engine.update_weights({}, 2)
        await engine.update_weights({}, 3)
        assert await lengths() == stopped
        await engine.resume()
        asked.append(asyncio.ensure_future(engine.generate(request("late", tokens=10))))
        return await asyncio.gather(*asked)

    replies = run(engine, play)
    for reply in replies:
        versions = np.zeros(len(reply.response_ids), np.int32)
        for first, version in ((0, reply.policy_version), *reply.later_versions):
            versions[first:] = version
        np.testing.assert_array_equal(versions, reply.response_ids)
    assert {int(reply.response_ids[-1]) for reply in replies} == {3}
    assert [reply.policy_version for reply in replies] == [0, 0, 0, 3, 3]
    assert not engine._versions and not engine._adapter_of


def test_an_update_that_fails_ends_what_runs(engine_that_fails_in: Any) -> None:
    engine = engine_that_fails_in()

    async def play() -> Generation:
        running = asyncio.ensure_future(engine.generate(request("a", tokens=10**9)))
        await asyncio.sleep(0)
        with pytest.raises(WeightUpdateError, match="bad weights"):
            await engine.update_weights({"bad": np.ones(1)}, 2)
        reply = await running
        assert (await engine.stats()).running == 0
        return reply

    reply = run(engine, play)
    assert reply.stop_reason is StopReason.ENGINE_ERROR and "bad weights" in reply.error


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


def adapter(content: bytes) -> AdapterBundle:
    files = tuple((name, content) for name in ADAPTER_FILES)
    bundle = AdapterBundle(files, None, 1, "")
    return replace(bundle, checksum=bundle.digest())


def test_an_adapter_that_was_refused_is_not_served_when_anothers_update_succeeds(
    engine_that_fails_in: Any, tmp_path
) -> None:
    engine = engine_that_fails_in()
    good, bad = tmp_path / "good", tmp_path / "bad"
    for directory in (good, bad):
        directory.mkdir()
        adapter(directory.name.encode()).write(directory)

    async def reply() -> Generation:
        return await engine.generate(replace(request("r"), adapter="a"))

    async def play() -> list[Generation]:
        for name in "ab":
            await engine.update_adapter(name, str(good), 1)
        with pytest.raises(WeightUpdateError, match=r"the update of a to weights version 2 failed.*bad adapter"):
            await engine.update_adapter("a", str(bad), 2)
        await engine.update_adapter("b", str(good), 2)
        with pytest.raises(WeightUpdateError, match="bad adapter"):
            await engine.health()
        refused = await reply()
        await engine.update_adapter("a", str(good), 3)
        return [refused, await reply()]

    refused, served = run(engine, play)
    assert refused.stop_reason is StopReason.ENGINE_ERROR and "bad adapter" in refused.error
    assert (served.error, served.policy_version) == (None, 3)


@pytest.mark.parametrize("damage", ["buffer", "checksum", "bad"])
def test_weights_that_did_not_arrive_whole_or_do_not_load_are_not_sampled_from(damage: str, tmp_path) -> None:
    """Until others have come."""
    actor = EngineActor(EngineSpec("fake", str(tmp_path), InferenceOptions(engine=FAKE), 1000), restarted=False)
    whole = pack_state({"w": np.arange(4, dtype=np.float32)}, 1)
    damaged: WeightBundle = {
        "buffer": replace(whole, buffer=whole.buffer[::-1].copy()),
        "checksum": replace(whole, checksum="0" * 32),
        "bad": pack_state({"bad": np.ones(1, np.float32)}, 2),
    }[damage]
    said = "bad weights" if damage == "bad" else f"were sent with {damaged.checksum}"

    async def sampled() -> Generation:
        return await actor._engine.generate(request("r"))

    async def play() -> None:
        assert await actor.update_weights(whole, 1) == whole.checksum
        running = asyncio.ensure_future(actor._engine.generate(request("running", tokens=10**9)))
        await asyncio.sleep(0)
        with pytest.raises(WeightUpdateError, match=said):
            await actor.update_weights(damaged, 2)
        assert said in ((await running).error or "")
        assert said in (await actor.status())["refusal"]
        assert await actor.update_weights(whole, 3) == whole.checksum
        assert (await actor.status())["refusal"] is None and (await sampled()).policy_version == 3
        await actor.shutdown()

    asyncio.run(play())


def test_an_adapter_that_did_not_arrive_whole_is_refused_until_it_does(tmp_path) -> None:
    """What came is compared with the sender's checksum; others' updates change nothing."""
    actor = EngineActor(EngineSpec("fake", str(tmp_path), InferenceOptions(engine=FAKE), 1000), restarted=False)

    async def play() -> None:
        whole = adapter(b"good")
        cut = replace(whole, files=tuple((name, content[:-1]) for name, content in whole.files))
        for name in "ab":
            assert await actor.update_weights(whole, 1, name) == whole.checksum
        with pytest.raises(WeightUpdateError, match=f"arrived with checksum {cut.digest()}, were sent with"):
            await actor.update_weights(cut, 2, "a")
        await actor.update_weights(whole, 2, "b")
        assert "arrived with checksum" in (await actor.status())["refusal"]
        await actor.update_weights(whole, 2, "a")
        assert (await actor.status())["refusal"] is None
        await actor.shutdown()

    asyncio.run(play())


@pytest.mark.parametrize("over_devices", [False, True])
def test_dropped_weights_wake_with_the_push_and_the_cache_after_it(over_devices: bool, tmp_path) -> None:
    """A request waits for the whole of it; a sleep in between, whose end no push follows, brings no reply either."""
    actor = EngineActor(EngineSpec("fake", str(tmp_path), InferenceOptions(engine=FAKE), 1000), restarted=False)
    whole = pack_state({"w": np.arange(4, dtype=np.float32)}, 1)

    async def replies() -> list[Generation]:
        return decode_generations((await actor.poll("me", 0.05))[2])

    async def play() -> list[str]:
        await actor.sleep(2)
        asked = asyncio.ensure_future(actor.submit("me", encode_requests([request("r")])))
        await actor.sleep(1)
        assert await replies() == []
        if over_devices:
            await actor.begin_device_update(1)
            await actor.finish_device_update(1)
            assert await replies() == []
            await actor.wake_up()
        else:
            with pytest.raises(WeightUpdateError):
                await actor.update_weights(replace(whole, checksum="0" * 32), 1)
            await asked
            assert (await replies())[0].error is not None
            asked = asyncio.ensure_future(actor.submit("me", encode_requests([request("again")])))
            await actor.update_weights(whole, 1)
            assert await replies() == []
            await actor.wake_up()
        await asked
        (reply,) = await replies() or await replies()
        assert (reply.error, reply.policy_version) == (None, 1)
        log = list(actor._engine._core.log)
        await actor.shutdown()
        return log

    loads = ["start_weight_update", "finish_weight_update"] if over_devices else ["load", "load"]
    assert asyncio.run(play()) == ["sleep at level 2", "wake weights", *loads, "wake kv_cache"]


def test_an_engine_that_kept_its_weights_wakes_by_itself(tmp_path) -> None:
    actor = EngineActor(EngineSpec("fake", str(tmp_path), InferenceOptions(engine=FAKE), 1000), restarted=False)

    async def play() -> list[str]:
        await actor.sleep()
        await actor.wake_up()
        assert (await actor._engine.generate(request("r"))).error is None
        await actor.shutdown()
        return list(actor._engine._core.log)

    assert asyncio.run(play()) == ["sleep at level 1", "wake weights", "wake kv_cache"]
