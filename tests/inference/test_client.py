"""The client with engine actors in its own process: engines that refuse, that lack weights, that load new ones; and
which engine a game goes to.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from fake_engine import FAKE, request
from hypothesis import assume, example, given
from hypothesis import strategies as st
from ray.rllib.core.rl_module import validate_module_id

from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import Generation, StopReason, WeightUpdateError
from rllib_lmgame.inference.serving.actor import EngineActor, EngineSpec
from rllib_lmgame.inference.serving.client import AffinityRouter, EngineClient, address, engine_of
from rllib_lmgame.inference.weights import pack_state

TIMEOUT_S = 120.0
BUNDLE = pack_state({"w": np.ones(3, np.float32)}, 5)


@given(st.text(min_size=1), st.text(min_size=1))
@example("a@b", "c@d")
@example("a:b", "league:0")
def test_no_policys_engine_is_taken_for_one_with_an_adapter(policy: str, adapter: str) -> None:
    """Whatever RLlib allows as a policy's name."""
    try:
        validate_module_id(policy, error=True)
    except ValueError:
        assume(False)
    name = f"lmgame-{policy}-1f-0"
    assert engine_of(name) == name == engine_of(address(name, adapter))


class Handle:
    """An actor handle without Ray; ``lost`` makes polls fail as those of a dead actor do."""

    def __init__(self, actor: EngineActor) -> None:
        self.actor, self.lost = actor, False

    def __getattr__(self, name: str) -> Any:
        return type("Method", (), {"remote": lambda _, *args: asyncio.ensure_future(self._call(name, *args))})()

    async def _call(self, name: str, *args: Any) -> Any:
        if self.lost and name == "poll":
            raise RuntimeError("actor died")
        return await getattr(self.actor, name)(*args)


def play(directory, game, *restarted: bool) -> Any:
    """Result of ``game(client, handles)`` with one engine per ``restarted``."""
    spec = EngineSpec("fake", str(directory), InferenceOptions(engine=FAKE), 50_000)

    async def whole() -> Any:
        handles = [Handle(EngineActor(spec, again)) for again in restarted]
        client = EngineClient(handles, request_timeout_s=TIMEOUT_S)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for handle in handles:
                    await handle.actor.start()
                return await game(client, handles)
        finally:
            client.close()
            for handle in handles:
                await handle.actor.shutdown()

    return asyncio.run(whole())


async def wave(client: EngineClient, name: str, count: int = 8) -> list[Generation]:
    return list(await asyncio.gather(*(client.generate(request(f"{name}-{i}/0")) for i in range(count))))


def errors(generations: list[Generation]) -> list[str]:
    return [g.error or "" for g in generations if g.stop_reason is StopReason.ENGINE_ERROR]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllib_lmgame.inference.serving.client.RECONNECT_S", 0.01)


def test_an_engine_that_refuses_gets_no_games_until_it_serves_again(tmp_path) -> None:
    async def game(client: EngineClient, handles: list[Handle]) -> tuple[list[Generation], list[Generation], int]:
        await handles[0].actor.refuse("no weights")
        first = await wave(client, "first")
        later = [g for i in range(9) for g in await wave(client, f"later{i}")]
        await handles[0].actor.update_weights(BUNDLE, 5)
        while not client._router.up[0]:
            await asyncio.sleep(0.01)
        before = (await handles[0].actor.stats()).requests
        assert errors(await wave(client, "back")) == []
        return first, later, (await handles[0].actor.stats()).requests - before

    first, later, served = play(tmp_path, game, True, False)
    assert len(errors(first)) == 4 and all("no weights" in error for error in errors(first))
    assert errors(later) == []
    assert served == 4


def test_games_fail_at_once_if_every_engine_refuses(tmp_path) -> None:
    async def game(client: EngineClient, handles: list[Handle]) -> list[Generation]:
        for handle in handles:
            await handle.actor.refuse("no weights")
        return [g for i in range(4) for g in await wave(client, str(i))]

    assert len(errors(play(tmp_path, game, True, True))) == 32


def test_an_engine_that_came_back_without_weights_gets_no_games(tmp_path) -> None:
    async def game(client: EngineClient, handles: list[Handle]) -> int:
        handles[0].lost = True
        assert len(errors(await wave(client, "lost"))) == 4
        handles[0].lost = False
        for _ in range(5):
            await asyncio.sleep(0.02)
            assert errors(await wave(client, "other")) == []
        await handles[0].actor.confirm_weights()
        while not client._router.up[0]:
            await asyncio.sleep(0.01)
        before = (await handles[0].actor.stats()).requests
        await wave(client, "back")
        return (await handles[0].actor.stats()).requests - before

    assert play(tmp_path, game, True, False) == 4


def test_requests_that_arrive_during_an_update_wait_for_the_new_weights(tmp_path) -> None:
    async def game(client: EngineClient, handles: list[Handle]) -> tuple[Generation, Generation]:
        actor = handles[0].actor
        long = asyncio.ensure_future(client.generate(request("long", tokens=40_000)))
        while (await actor.stats()).running == 0:
            await asyncio.sleep(0)
        update = asyncio.ensure_future(actor.update_weights(BUNDLE, 5))
        while (await actor.status())["refusal"] is None:
            await asyncio.sleep(0)
        meanwhile = await client.generate(request("meanwhile"))
        await update
        return await long, meanwhile

    long, meanwhile = play(tmp_path, game, False)
    last = long.later_versions[-1][1] if long.later_versions else long.policy_version
    assert (last, meanwhile.policy_version) == (5, 5)


def test_whole_weights_are_not_taken_for_an_adapters(tmp_path) -> None:
    """They would replace the base under all adapters."""

    async def game(client: EngineClient, handles: list[Handle]) -> list[Generation]:
        with pytest.raises(WeightUpdateError, match="whole weights came for the adapter 'player'"):
            await handles[0].actor.update_weights(BUNDLE, 5, "player")
        return await wave(client, "after")

    assert all(g.policy_version == 0 for g in play(tmp_path, game, False))


def test_weights_that_have_arrived_are_served_whatever_is_said_late(tmp_path) -> None:
    async def game(client: EngineClient, handles: list[Handle]) -> list[Generation]:
        actor = handles[0].actor
        await asyncio.gather(actor.update_weights(BUNDLE, 5), actor.refuse("waiting for the next push"))
        return await wave(client, "after")

    assert errors(play(tmp_path, game, True)) == []


class Remote:
    """A handle of an actor that lives elsewhere: what it was asked goes on when nobody waits for the answer."""

    def __init__(self, actor: EngineActor, home: asyncio.AbstractEventLoop) -> None:
        self.actor, self.home = actor, home

    def __getattr__(self, name: str) -> Any:
        return type("Method", (), {"remote": lambda _, *args: self._call(name, *args)})()

    def _call(self, name: str, *args: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def deliver(call: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: answer.done() or answer.set_result(call.result()))

        asyncio.run_coroutine_threadsafe(getattr(self.actor, name)(*args), self.home).add_done_callback(deliver)
        return answer


def test_a_poll_of_games_that_were_left_behind_takes_no_reply_of_later_ones(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each set of games has an event loop of its own; the engine does not know when one ends."""
    home = asyncio.new_event_loop()
    thread = threading.Thread(target=home.run_forever, daemon=True)
    thread.start()
    actor = EngineActor(EngineSpec("fake", str(tmp_path), InferenceOptions(engine=FAKE), 50_000_000), False)
    client = EngineClient([Remote(actor, home)])
    polls: list[str] = []
    poll = actor.poll

    async def noted(client_id: str, max_wait_s: float) -> Any:
        polls.append(client_id)
        return await poll(client_id, max_wait_s)

    monkeypatch.setattr(actor, "poll", noted)

    async def left_behind() -> None:
        game = asyncio.ensure_future(client.generate(request("slow/0", tokens=40_000_000)))
        while not polls:
            await asyncio.sleep(0.01)
        game.cancel()
        await asyncio.wait([game])

    try:
        asyncio.run(asyncio.wait_for(left_behind(), TIMEOUT_S))
        for number in range(5):
            assert errors(asyncio.run(asyncio.wait_for(wave(client, f"later{number}"), TIMEOUT_S))) == []
        assert asyncio.run_coroutine_threadsafe(actor.stats(), home).result(TIMEOUT_S).running == 0
    finally:
        asyncio.run_coroutine_threadsafe(actor.shutdown(), home).result(TIMEOUT_S)
        home.call_soon_threadsafe(home.stop)
        thread.join(TIMEOUT_S)
        home.close()


KEYS = st.one_of(st.none(), st.integers(0, 12).map(str))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), KEYS),
        st.tuples(st.just("finish"), st.integers(0, 50)),
        st.tuples(st.just("mark"), st.tuples(st.integers(0, 3), st.booleans())),
        st.tuples(st.just("forget"), st.integers(0, 12).map(str)),
    ),
    max_size=120,
)


@example(2, [("request", "0"), ("finish", 0), ("request", "1")])
@given(st.integers(1, 4), EVENTS)
def test_affinity_liveness_and_balance(num_engines: int, events: list) -> None:
    router = AffinityRouter(num_engines)
    up, home, flying = [True] * num_engines, {}, []
    for kind, value in events:
        if kind == "request":
            engine = router.route(value)
            assert (engine is None) == (not any(up))
            if engine is None:
                continue
            assert up[engine]
            if value is not None and value in home and up[home[value]]:
                assert engine == home[value]
            else:
                keys = [e for key, e in home.items() if key != value]
                busy = {e: (flying.count(e), keys.count(e)) for e in range(num_engines) if up[e]}
                assert busy[engine] == min(busy.values())
            if value is not None:
                home[value] = engine
            router.in_flight[engine] += 1
            flying.append(engine)
        elif kind == "finish" and flying:
            router.in_flight[flying.pop(value % len(flying))] -= 1
        elif kind == "mark":
            engine, alive = value[0] % num_engines, value[1]
            router.up[engine] = alive
            up[engine] = alive
        elif kind == "forget":
            router.forget(value)
            home.pop(value, None)
