"""Engines that die, break or do not load again, with an engine that has no model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engine import BAD, ask, kill, request

from rllib_lmgame.inference.protocol import StopReason

WEIGHTS = {"w": np.ones(3, np.float32)}


def loads(directory: Path) -> int:
    return len((directory / "loads").read_text())


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds, fail after a minute."""
    never = threading.Event()
    for _ in range(1200):
        if condition():
            return
        never.wait(0.05)
    raise TimeoutError


def test_an_engine_that_did_not_load_again_is_tried_until_it_does(
    make_group: Callable[..., Any], tmp_path: Path
) -> None:
    group = make_group()
    (tmp_path / "broken").touch()
    kill(group, group.names[0])
    restarted: list[str] = []
    healer = threading.Thread(target=lambda: restarted.extend(group.restart_dead()))
    healer.start()
    wait_until(lambda: loads(tmp_path) >= 3)
    assert healer.is_alive()
    (tmp_path / "broken").unlink()
    healer.join(60)
    assert restarted == group.names
    assert ask(group.names, request("again"))[0].stop_reason is StopReason.MAX_TOKENS


def test_an_engine_that_never_loads_again_is_named_with_the_reason(
    make_group: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group()
    late = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0], perf_counter=time.perf_counter)
    monkeypatch.setattr("rllib_lmgame.inference.serving.group.time", clock)
    (tmp_path / "broken").touch()
    kill(group, group.names[0])
    errors: list[Exception] = []
    healer = threading.Thread(target=lambda: errors.append(error_of(group.restart_dead)))
    healer.start()
    wait_until(lambda: loads(tmp_path) >= 4)  # However long a busy machine takes for it.
    late[0] = 1000.0
    healer.join(60)
    with pytest.raises(TimeoutError, match=rf"{group.names[0]} did not come back within 60 s: out of memory"):
        raise errors[0]


def error_of(function: Callable[[], object]) -> Exception:
    """What ``function`` raises."""
    try:
        return AssertionError(f"returned {function()}")
    except Exception as error:
        return error


def test_counters_leave_out_an_engine_that_loads(
    make_group: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rllib_lmgame.inference.serving.group.ANSWER_S", 5.0)
    group = make_group(2)
    assert len(group.stats()) == 2
    (tmp_path / "slow").touch()
    kill(group, group.names[0])
    healer = threading.Thread(target=group.restart_dead)
    healer.start()
    wait_until(lambda: loads(tmp_path) >= 3)
    assert len(group.stats()) == 1
    (tmp_path / "slow").unlink()
    healer.join(60)
    assert len(group.stats()) == 2


def test_a_call_reaches_an_engine_that_had_died(make_group: Callable[..., Any]) -> None:
    group = make_group(2)
    kill(group, group.names[0])
    group.call("pause")
    group.call("resume")
    assert len(group.stats()) == 2


def test_a_push_brings_back_an_engine_that_broke(make_group: Callable[..., Any]) -> None:
    group = make_group()
    (broken,) = ask(group.names, request("bad", BAD))
    assert broken.stop_reason is StopReason.ENGINE_ERROR
    group.push(WEIGHTS, 4)
    (served,) = ask(group.names, request("good"))
    assert (served.stop_reason, served.policy_version) == (StopReason.MAX_TOKENS, 4)


def test_an_engine_that_starts_again_while_new_weights_are_made_waits_for_them(make_group: Callable[..., Any]) -> None:
    group = make_group()
    group.push(WEIGHTS, 4)
    group.make_room()
    (served,) = ask(group.names, request("still"))
    assert (served.stop_reason, served.policy_version) == (StopReason.MAX_TOKENS, 4)
    kill(group, group.names[0])
    assert group.restart_dead() == group.names
    (refused,) = ask(group.names, request("between"))
    assert "after weights version 4; waiting for the learners' next push" in str(refused.error)
    group.push(WEIGHTS, 5)
    (served,) = ask(group.names, request("good"))
    assert (served.stop_reason, served.policy_version) == (StopReason.MAX_TOKENS, 5)


def test_no_engine_is_made_after_the_end(make_group: Callable[..., Any], tmp_path: Path) -> None:
    group = make_group()
    (tmp_path / "slow").touch()
    kill(group, group.names[0])
    healer = threading.Thread(target=group.restart_dead)
    healer.start()
    wait_until(lambda: loads(tmp_path) >= 2)
    handle = group._handles[group.names[0]]
    group.shutdown()
    healer.join(60)
    assert not healer.is_alive() and group._handles[group.names[0]] is handle


def test_an_engine_killed_twice_for_want_of_memory_stays_down(
    make_group: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rllib_lmgame.inference.serving.group import EngineMemoryError

    group = make_group()
    deaths: list[str] = []
    monkeypatch.setattr(
        "rllib_lmgame.inference.serving.group.memory_line",
        lambda text: f"out of memory ({group.names[0]}, death {len(deaths)})",
    )
    for _ in range(2):
        deaths.append("")
        kill(group, group.names[0])
        wait_until(lambda: bool(ray_wait(group)))
        if len(deaths) == 1:
            assert group.restart_dead() == group.names
            assert ask(group.names, request("again"))[0].stop_reason is StopReason.MAX_TOKENS
    with pytest.raises(EngineMemoryError, match="death 2"):
        group.restart_dead()


def ray_wait(group: Any) -> list[Any]:
    """Whether the end of the first engine is known."""
    import ray

    return ray.wait([group._vigils[group.names[0]]], timeout=0)[0]


def test_a_signal_ends_the_wait_for_an_engine_that_does_not_come_back(
    make_group: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rllib_lmgame.inference.serving import interruption

    monkeypatch.setattr(interruption, "GRACE_S", 0.5)
    monkeypatch.setattr(interruption, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(interruption, "_key", lambda: b"of this test")
    group = make_group()
    (tmp_path / "broken").touch()
    kill(group, group.names[0])
    errors: list[Exception] = []
    pusher = threading.Thread(target=lambda: errors.append(error_of(lambda: group.push(WEIGHTS, 1))))
    pusher.start()
    wait_until(lambda: loads(tmp_path) >= 3)
    assert pusher.is_alive() and not errors
    interruption.request()
    pusher.join(30)
    (error,) = errors
    assert isinstance(error, interruption.InterruptedWaitError) and group.names[0] in str(error)
