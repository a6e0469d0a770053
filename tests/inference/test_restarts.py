"""Engines that die, break or do not load again, with an engine that has no model."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engine import BAD, kill, request
from inference_reference import ask

from rllib_lmgame.inference.protocol import StopReason

WEIGHTS = {"w": np.ones(3, np.float32)}


def loads(directory) -> int:
    return len((directory / "loads").read_text())


def beside(function, *arguments: Any) -> Future[Any]:
    """What ``function`` gives or raises in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    running = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return running


def wait_until(condition) -> None:
    """Return once ``condition`` holds, fail after five minutes, which a busy machine may need."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_an_engine_that_never_loads_again_is_named_with_the_reason(
    make_group: Any, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group()
    late = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0], perf_counter=time.perf_counter)
    monkeypatch.setattr("rllib_lmgame.inference.serving.group.time", clock)
    (tmp_path / "broken").touch()
    kill(group, group.names[0])
    healing = beside(group.restart_dead)
    wait_until(lambda: loads(tmp_path) >= 4)  # However long a busy machine takes for it.
    late[0] = 1000.0
    with pytest.raises(TimeoutError, match=rf"{group.names[0]} did not come back within 60 s: out of memory"):
        healing.result(300)


def test_a_call_reaches_an_engine_that_had_died(make_group: Any) -> None:
    group = make_group(2)
    group.wait_until_ready()
    kill(group, group.names[0])
    group.call("pause")
    group.call("resume")
    assert len(group.stats()) == 2


@pytest.mark.slow
def test_a_push_brings_back_an_engine_that_broke(make_group: Any) -> None:
    group = make_group()
    (broken,) = ask(group.names, [request("bad", BAD)])
    assert broken.stop_reason is StopReason.ENGINE_ERROR
    group.push(WEIGHTS, 4)
    (served,) = ask(group.names, [request("good")])
    assert (served.stop_reason, served.policy_version) == (StopReason.MAX_TOKENS, 4)


@pytest.mark.slow
def test_an_engine_that_starts_again_while_new_weights_are_made_waits_for_them(make_group: Any) -> None:
    group = make_group()
    group.push(WEIGHTS, 4)
    group.make_room()
    (served,) = ask(group.names, [request("still")])
    assert (served.stop_reason, served.policy_version) == (StopReason.MAX_TOKENS, 4)
    kill(group, group.names[0])
    assert group.restart_dead() == group.names
    (refused,) = ask(group.names, [request("between")])
    assert "after weights version 4; waiting for the learners' next push" in str(refused.error)
    group.push(WEIGHTS, 5)
    (served,) = ask(group.names, [request("good")])
    assert (served.stop_reason, served.policy_version) == (StopReason.MAX_TOKENS, 5)


@pytest.mark.slow
def test_no_engine_is_made_after_the_end(make_group: Any, tmp_path) -> None:
    group = make_group()
    (tmp_path / "slow").touch()
    kill(group, group.names[0])
    healing = beside(group.restart_dead)
    wait_until(lambda: loads(tmp_path) >= 2)
    handle = group._handles[group.names[0]]
    group.shutdown()
    wait([healing], 300)
    assert healing.done() and group._handles[group.names[0]] is handle


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_an_engine_that_does_not_come_back(
    make_group: Any, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rllib_lmgame.inference.serving import interruption

    monkeypatch.setattr(interruption, "GRACE_S", 0.5)
    monkeypatch.setattr(interruption, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(interruption, "_NAMESPACE", b"of this test")
    group = make_group()
    (tmp_path / "broken").touch()
    kill(group, group.names[0])
    pushing = beside(group.push, WEIGHTS, 1)
    wait_until(lambda: loads(tmp_path) >= 3)
    assert not pushing.done()
    interruption.request()
    with pytest.raises(interruption.InterruptedWaitError, match=group.names[0]):
        pushing.result(300)
