"""The lines a person watches during a run."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from rllib_lmgame.telemetry import progress
from rllib_lmgame.telemetry.progress import ProgressCallback, progress_line


class Clock:
    """A clock that is moved by hand, in place of the module ``time``."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_how_long_the_processes_took_is_told_once(clock: Clock) -> None:
    stream = io.StringIO()
    callback = ProgressCallback(since=90.0, stream=stream)
    trials = [SimpleNamespace(trial_id="a"), SimpleNamespace(trial_id="b")]
    callback.setup(stop=None, num_samples=2)
    clock.now = 107.6
    for trial in trials:
        callback.on_trial_start(0, trials, trial)
    assert stream.getvalue().splitlines() == ["starting processes ...", "[a] processes up in 18 s", "[b] processes up"]


def test_time_left_comes_from_the_pace_since_a_criterion_began_to_move(clock: Clock) -> None:
    """20 s of warm start in which the iterations of PPO stand still, then 5 s each."""
    stream = io.StringIO()
    callback = ProgressCallback({"ppo_iteration": 100, "env_runners/success_rate": 0.9}, stream=stream)
    trial = SimpleNamespace(trial_id="a")
    for iteration, (now, value) in enumerate([(110.0, 0), (120.0, 0), (125.0, 1), (130.0, 2)]):
        clock.now = now
        result: dict[str, Any] = {
            "training_iteration": iteration + 1,
            "ppo_iteration": value,
            "env_runners": {"success_rate": 0.5},
        }
        callback.on_trial_result(0, [trial], trial, result)
    assert [line.partition("ETA ")[2] for line in stream.getvalue().splitlines()] == ["", "", "8:15", "8:10"]


def test_a_line_names_what_an_iteration_took() -> None:
    timers = {"rollout_s": 2.0, "vine_s": 60.0, "update_s": 1.0, "weight_sync_s": 0.1}
    line = progress_line({"training_iteration": 3, "phase": 1, "ppo_iteration": 2, "timers": timers})
    assert "play 2.00s values 60.00s update 1.00s sync 0.10s" in line


def test_a_line_leaves_out_what_is_not_known() -> None:
    result = {"training_iteration": 3, "time_this_iter_s": 1.25, "env_runners": {"episode_return_mean": float("nan")}}
    assert progress_line(result) == "iter    3  1.2s"


def test_self_play_shows_who_won_in_place_of_success() -> None:
    rates = {"win_rate": {"p": {"first": 0.5, "second": 0.3}}, "draw_rate": {"p": {"first": 0.2, "second": 0.2}}}
    runners = {
        **rates,
        "loss_rate": {"p": {"first": 0.3, "second": 0.5}},
        "success_rate": float("nan"),
        "episode_return_mean": 0.0,
    }
    line = progress_line({"training_iteration": 3, "time_this_iter_s": 1.0, "env_runners": runners})
    assert line == "iter    3  1.0s  win-draw-loss first 0.50-0.20-0.30, second 0.30-0.20-0.50  return +0.00"
    assert "win-draw-loss" not in progress_line(
        {"training_iteration": 3, "env_runners": {**runners, "success_rate": 0.5}}
    )
