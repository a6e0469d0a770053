"""A trial goes on whether or not anybody can be told what it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RpcError
from ray.experimental import internal_kv
from ray.rllib.algorithms.ppo import PPO

from rllib_lmgame.algorithms import base
from rllib_lmgame.algorithms.ppo import LMGamePPO, LMGamePPOConfig
from rllib_lmgame.telemetry.phases import WHY_DROPPED, phase_of, tell_phase


@pytest.mark.parametrize("error", [RpcError("failed to connect to all addresses"), OSError("broken pipe")])
def test_a_control_service_that_does_not_answer_ends_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def fail(key: bytes, *_: Any, **__: Any) -> None:
        asked.append(key)
        raise error

    monkeypatch.setattr(internal_kv, "_internal_kv_initialized", lambda: True)
    monkeypatch.setattr(internal_kv, "_internal_kv_put", fail)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", fail)
    tell_phase("a", "playing")
    assert phase_of("a") is None
    assert asked == [b"a", b"a"]


def test_phases_are_said_until_the_first_result_and_reasons_always(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(base, "tell_phase", lambda name, words: told.append(f"{name}: {words}"))
    monkeypatch.setattr(base, "with_columns", lambda result, **_: result)
    monkeypatch.setattr(PPO, "step", lambda algorithm: algorithm.tell("updating") or {})
    algorithm = LMGamePPO.__new__(LMGamePPO)
    vars(algorithm).update(
        _tune_trial=SimpleNamespace(trial_id="a"), config=LMGamePPOConfig(), _measured=(), _league=None
    )
    for _ in range(2):
        algorithm.step()
    algorithm.tell("its game broke", WHY_DROPPED)
    assert told == ["a: updating", "a/dropped: its game broke"]
