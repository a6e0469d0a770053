"""Engine actors on Ray: clients, affinity, faults; no vLLM is needed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from inference_reference import CONTEXT, STOP, ask, requests, sound, state_of

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason, WeightUpdateError
from rllib_lmgame.inference.serving.client import EngineClient
from rllib_lmgame.inference.weights import pack_state

ray = pytest.importorskip("ray")

from rllib_lmgame.inference.serving import group as group_module  # noqa: E402
from rllib_lmgame.inference.serving.group import EngineGroup  # noqa: E402

OPTIONS = InferenceOptions(
    engine="transformers", num_engines=2, num_cpus_per_engine=0.5, start_timeout_s=120, request_timeout_s=60
)


@pytest.fixture(scope="module", autouse=True)
def cluster(ray_cluster: Any) -> Any:
    return ray_cluster


@pytest.fixture(scope="module")
def group(model_dir: str) -> Iterator[Any]:
    group = EngineGroup.create("pair", model_dir, OPTIONS, CONTEXT)
    yield group
    group.shutdown()


@pytest.fixture
def put_back(group: Any, models: Any) -> Iterator[None]:
    """The group has the first model's weights again after the test."""
    yield
    group.push(state_of(models[0]), 99)


def pids(group: Any) -> dict[str, int]:
    return {name: ray.get(ray.get_actor(name).alive.remote()) for name in group.names}


def test_a_hundred_games_of_three_turns(group: Any, models: Any) -> None:
    """Every game's next prompt is its last one with the reply, and stays on one engine."""

    async def game(client: EngineClient, g: int) -> list[tuple[GenerationRequest, Generation]]:
        prompt, played, homes = [3 + g % 90, 5, 6], [], set()
        for turn in range(3):
            request = GenerationRequest(f"game{g}/player/{turn}", list(prompt), SamplingSpec(5, stop_token_ids=(STOP,)))
            generation = await client.generate(request)
            homes.add(client._router.route(f"game{g}/player"))
            played.append((request, generation))
            prompt += [*generation.response_ids.tolist(), 7]
        assert len(homes) == 1
        return played

    async def run() -> list[list[tuple[GenerationRequest, Generation]]]:
        client = EngineClient(group.names)
        return await asyncio.gather(*(game(client, g) for g in range(100)))

    before = group.stats()
    for request, generation in (pair for game_ in asyncio.run(run()) for pair in game_):
        assert generation.request_id == request.request_id
        assert sound(models[0], [request], [generation])
    served = [after.requests - stats.requests for stats, after in zip(before, group.stats(), strict=True)]
    assert sum(served) == 300 and min(served) >= 120


def test_requests_of_one_tick_travel_together(group: Any) -> None:
    sent = []

    class Handle:
        def __init__(self, handle: Any) -> None:
            self.poll, self.abort, self.missing = handle.poll, handle.abort, handle.missing
            self.submit = self
            self._handle = handle

        def remote(self, client_id: str, packed: Any) -> Any:
            sent.append(len(packed[0]))
            return self._handle.submit.remote(client_id, packed)

    async def run() -> None:
        client = EngineClient([Handle(ray.get_actor(group.names[0]))])
        await asyncio.gather(*(client.generate(r) for r in requests(40, SamplingSpec(1), prefix="tick")))

    asyncio.run(run())
    assert sent == [40]


@pytest.mark.usefixtures("put_back")
def test_push_reaches_all_engines(group: Any, models: Any) -> None:
    batch = requests(16, SamplingSpec(5), prefix="pushed")
    group.push(state_of(models[1]), 7)
    generations = ask(group.names, batch)
    assert {g.policy_version for g in generations} == {7}
    assert sound(models[1], batch, generations)


@pytest.mark.usefixtures("put_back")
def test_weights_that_change_on_the_way_are_refused(group: Any, models: Any) -> None:
    bundle = pack_state(state_of(models[1]), 9)
    bundle.buffer[1000] ^= 1
    with pytest.raises(WeightUpdateError, match="checksum"):
        group.push(bundle, 9)
    assert all("checksum" in g.error for g in ask(group.names, requests(8, SamplingSpec(3), prefix="refused")))
    group.push(state_of(models[0]), 10)
    assert {g.policy_version for g in ask(group.names, requests(4, SamplingSpec(3), prefix="served"))} == {10}


def kill_and_wait(group: Any, name: str) -> None:
    """SIGKILL an engine and wait until the group has it back; the wait has a time-out of its own in the group."""
    os.kill(pids(group)[name], signal.SIGKILL)
    seen = group._handles[name]
    while True:
        try:
            ray.get(seen.alive.remote())
        except ray.exceptions.RayError:
            break
    group.restart_dead()


@pytest.mark.slow
@pytest.mark.usefixtures("put_back")
def test_an_engine_killed_while_generating(group: Any, models: Any) -> None:
    """Its requests come back as errors that name it, the others go on, and it returns with the last weights."""
    group.push(state_of(models[1]), 11)

    async def run() -> tuple[list[Generation], list[Generation]]:
        client = EngineClient(group.names)
        running = [asyncio.ensure_future(client.generate(r)) for r in requests(40, SamplingSpec(200), prefix="killed")]
        while (await ray.get_actor(group.names[0]).stats.remote()).running == 0:
            pass
        await asyncio.to_thread(os.kill, pids(group)[group.names[0]], signal.SIGKILL)
        first = await asyncio.gather(*running)
        # These wait for nobody: the other engine is up.
        return first, await asyncio.gather(*(client.generate(r) for r in requests(10, SamplingSpec(3), prefix="next")))

    first, following = asyncio.run(run())
    errors = [g for g in first if g.stop_reason is StopReason.ENGINE_ERROR]
    assert 1 <= len(errors) <= 20 and all(group.names[0] in g.error and "died" in g.error for g in errors)
    assert all(g.stop_reason is StopReason.MAX_TOKENS for g in following)
    group.restart_dead()
    batch = requests(12, SamplingSpec(4), prefix="back")
    generations = ask(group.names[:1], batch)
    assert {g.policy_version for g in generations} == {11}
    assert sound(models[1], batch, generations)


@pytest.mark.slow
@pytest.mark.usefixtures("put_back")
def test_requests_wait_for_the_only_engine_to_come_back(group: Any, models: Any) -> None:
    async def run() -> Generation:
        client = EngineClient(group.names[:1])
        await client.generate(requests(1, SamplingSpec(2), prefix="warm")[0])
        os.kill(pids(group)[group.names[0]], signal.SIGKILL)
        lost = await client.generate(requests(1, SamplingSpec(250), prefix="lost")[0])
        assert lost.stop_reason is StopReason.ENGINE_ERROR
        # The group's own thread restarts the engine and gives it its weights while this waits.
        return await client.generate(requests(1, SamplingSpec(2), prefix="patient")[0])

    group.push(state_of(models[1]), 13)
    generation = asyncio.run(run())
    assert generation.policy_version == 13
    assert sound(models[1], requests(1, SamplingSpec(2), prefix="patient"), [generation])


@pytest.mark.slow
@pytest.mark.usefixtures("put_back")
def test_an_engine_killed_during_a_weight_update(group: Any, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The push notices, the engine comes back and holds the pushed weights when the push returns."""
    pushed = group_module.push_shared

    def kills_first(engines: Any, shared: Any, version: int, *rest: Any) -> Any:
        ray.get(engines[group.names[1]].pause.remote())
        stuck = engines[group.names[1]].update_weights.remote(pack_state(state_of(models[1]), version), version)
        os.kill(pids(group)[group.names[1]], signal.SIGKILL)
        ray.wait([stuck])
        monkeypatch.undo()
        return pushed(engines, shared, version, *rest)

    monkeypatch.setattr(group_module, "push_shared", kills_first)
    group.push(state_of(models[1]), 15)
    batch = requests(8, SamplingSpec(4), prefix="pushed-again")
    for name in group.names:
        generations = ask([name], batch)
        assert {g.policy_version for g in generations} == {15}
        assert sound(models[1], batch, generations)


@pytest.mark.slow
def test_before_any_push_a_restarted_engine_serves_its_first_weights(model_dir: str, models: Any) -> None:
    group = EngineGroup.create(
        "fresh", model_dir, InferenceOptions(engine="transformers", num_cpus_per_engine=0.5), CONTEXT, version=3
    )
    try:
        kill_and_wait(group, group.names[0])
        (request,) = requests(1, SamplingSpec(4), prefix="first")
        (generation,) = ask(group.names, [request])
        assert generation.policy_version == 3
        assert sound(models[0], [request], [generation])
    finally:
        group.shutdown()


def test_no_engine_in_time_names_who_is_missing() -> None:
    (generation,) = ask(["nobody-0", "nobody-1"], requests(1, SamplingSpec(2)), timeout_s=0.3)
    assert generation.stop_reason is StopReason.ENGINE_ERROR
    assert "nobody-0, nobody-1" in generation.error and "0.3 s" in generation.error


def test_a_reply_that_does_not_come_names_the_engine(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllib_lmgame.inference.serving.client.POLL_WAIT_S", 0.1)
    handle = ray.get_actor(group.names[0])

    async def run() -> Generation:
        client = EngineClient(group.names[:1])
        await client.generate(requests(1, SamplingSpec(1), prefix="connected")[0])
        await handle.pause.remote()
        client._timeout = 0.3
        return await client.generate(requests(1, SamplingSpec(2), prefix="slow")[0])

    try:
        generation = asyncio.run(run())
    finally:
        ray.get(handle.resume.remote())
    assert group.names[0] in generation.error and "no reply within 0.3 s" in generation.error


def test_engines_that_do_not_fit_are_named(model_dir: str) -> None:
    options = InferenceOptions(engine="transformers", num_cpus_per_engine=1000, start_timeout_s=1.0)
    with pytest.raises(TimeoutError, match=r"1 of 1 engines are not up.*huge-0 \(no process yet: asks for .*1000"):
        EngineGroup.create("huge", model_dir, options, CONTEXT)


@pytest.mark.slow
def test_an_engine_that_cannot_start_says_why(model_dir: str) -> None:
    options = InferenceOptions(num_cpus_per_engine=0.5, engine="transformers", tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="tensor_parallel_size"):
        EngineGroup.create("broken", model_dir, options, CONTEXT)


def test_missing_vllm_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from rllib_lmgame.inference.engines.vllm_engine import VLLMEngine

    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.platforms", None)
    engine = VLLMEngine("nowhere", InferenceOptions(), context_length=64)
    with pytest.raises(MissingDependencyError, match=r"install.sh quickstart.*inference.engine: transformers"):
        asyncio.run(engine.start())
