"""What is told of a run: the lines a person watches, the phases of a trial, the labels of gauges."""

from __future__ import annotations

import io
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.util.metrics
from ray.exceptions import RpcError
from ray.experimental import internal_kv
from ray.tune.result import TRIAL_INFO

from rllib_lmgame.algorithms import base
from rllib_lmgame.algorithms.dpo import LMGameDPO
from rllib_lmgame.algorithms.ppo import LMGamePPO
from rllib_lmgame.experiments.run import measure
from rllib_lmgame.experiments.run.measure import measured_lines
from rllib_lmgame.experiments.runner import trial_directory_name
from rllib_lmgame.experiments.spec import Source, make_spec
from rllib_lmgame.telemetry import progress
from rllib_lmgame.telemetry.gauges import LMGameGauges
from rllib_lmgame.telemetry.progress import ProgressCallback, phase_of, progress_line, tell_phase
from rllib_lmgame.telemetry.trial_names import settings_name


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


def test_trials_are_called_by_what_they_drew(clock: Clock) -> None:
    """As it is now; by their ids where that does not tell them apart, or nothing was drawn."""
    key = "training/advantage_estimator"

    def trial(name: str, seed: int, estimator: str) -> SimpleNamespace:
        config = {"seed": seed, "training": {"advantage_estimator": estimator}}
        return SimpleNamespace(trial_id=name, evaluated_params={"seed": seed, key: "grpo"}, config=config)

    trials = [trial("a", 0, "grpo"), trial("b", 1, "mine:Best"), trial("c", 1, "mine:Best")]
    callback = ProgressCallback(stream=(stream := io.StringIO()))
    for each in trials:
        callback.on_trial_start(0, trials, each)
    said = [line.split("]")[0][1:] for line in stream.getvalue().splitlines()]
    assert said == ["grpo seed 0", "Best seed 1 (b)", "Best seed 1 (c)"]
    assert settings_name({"lr": 1e-4, "a.b": {"x": 0.5, "type": "gspo"}, "c": True}) == "lr=0.0001 gspo x=0.5 c=True"
    assert trial_directory_name(trials[1]) == "Best_seed_1_b"
    told = {f"policies/p{n}/language_model/system_prompt": "推箱子，不要撞墙" * 3 for n in range(9)}
    long = trial_directory_name(SimpleNamespace(trial_id="d", evaluated_params=told, config={}))
    assert long.startswith("推箱子") and long.endswith("_d") and len(long.encode()) < 255


@pytest.mark.parametrize(
    ("stop", "each", "ends", "left"),
    [
        ("rl_iteration", lambda n: {"rl_iteration": max(0, n - 1)}, (10, 20, 25, 30), ["", "", "8 min", "8 min"]),
        ("supervised_steps", lambda n: {"progress": (n + 1) / 3}, (0, 10, 20), ["", "10 s", "0 s"]),
    ],
)
def test_time_left_comes_from_the_pace_since_a_criterion_or_progress_moves(
    stop: str, each: Any, ends: Any, left: list[str], clock: Clock
) -> None:
    """After 20 s of warm start an iteration takes 5 s; or a trial ends of its own after three of 10 s."""
    callback = ProgressCallback({stop: 100, "env_runners/success_rate": 0.9}, stream=(stream := io.StringIO()))
    trial = SimpleNamespace(trial_id="a")
    for number, now in enumerate(ends):
        clock.now = 100.0 + now
        result = {"training_iteration": number + 1, "env_runners": {"success_rate": 0.5}, **each(number)}
        callback.on_trial_result(0, [trial], trial, result)
    assert [line.partition("ETA ")[2] for line in stream.getvalue().splitlines()] == left
    assert LMGameDPO.progress(SimpleNamespace(_rl_iteration=1, _last_iteration=4)) == 0.25


def test_what_was_measured_tells_when_each_criterion_ends_the_run() -> None:
    stop = {"rl_iteration": 200, "env_runners/success_rate": 0.9, "num_env_steps_sampled_lifetime": 600}
    settings = {"run": "PPO", "stop": stop, "time_budget_s": 7200, "config": {"warm_start": {}}}
    results = [{"rl_iteration": n, "num_env_steps_sampled_lifetime": 30 * n} for n in (1, 2, 3)]
    lines = measured_lines(make_spec("a", settings, Source("a.yaml")), results, [10.0, 20.0, 32.0], 1.0)
    assert lines == [
        "an iteration takes 12.0 s, with its part of evaluations",
        "stop.rl_iteration: 200 is reached after about 40 min in all",
        "stop.num_env_steps_sampled_lifetime: 600 is reached after about 4 min in all",
        "time_budget_s ends it after 2 h 00 min",
        "a warm start comes first, which is not measured; replies and episodes often get shorter by it",
    ]


def test_evaluations_are_measured_by_themselves(monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path) -> None:
    """Neither iteration 0, which evaluates alone, nor an evaluation in every iteration is taken for an iteration."""

    class Algorithm:
        def __init__(self, values: dict[str, Any]) -> None:
            self.every, self.iteration, self.logdir = values["evaluation_interval"], -1, str(tmp_path / "trial")

        def train(self) -> dict[str, Any]:
            self.iteration += 1
            clock.now += 50.0 if self.iteration == 0 or self.iteration % self.every == 0 else 10.0
            return {"training_iteration": self.iteration, "rl_iteration": self.iteration or math.nan}

        def evaluate(self) -> None:
            clock.now += 40.0

        def stop(self) -> None:
            pass

    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(
        measure, "build_config", lambda _, values: SimpleNamespace(build_algo=lambda: Algorithm(values))
    )
    settings = {"run": "LMGamePPO", "stop": {"rl_iteration": 100}, "config": {"evaluation_interval": 1}}
    experiment: Any = SimpleNamespace(spec=make_spec("a", settings, Source("a.yaml")), algorithm=None)
    *_, each, whole = measure._measured(experiment)
    assert each == "an iteration takes 50.0 s, with its part of evaluations"
    assert whole == "stop.rl_iteration: 100 is reached after about 83 min in all"


def test_the_return_is_the_trained_policys_own_by_role_where_that_differs() -> None:
    """In a zero-sum game the sum over seats is 0, whoever wins."""
    seats = {"player": {"first": 0.25, "second": -0.5}, "opponent": {"first": 0.5, "second": -0.25}}
    runners = {"success_rate": 0.4, "episode_return_mean": 0.0, "seat_returns_mean": seats}
    result = {"training_iteration": 3, "time_this_iter_s": 1.0, "env_runners": runners}
    learners = {"__all_modules__": {}, "player": {"entropy": 1.0}}
    line = progress_line(result | {"learners": learners})
    assert "  return first +0.25, second -0.50  " in line and "opponent" not in line
    both = progress_line(result | {"learners": learners | {"opponent": {}}})
    assert "return player first +0.25, player second -0.50, opponent first +0.50, opponent second -0.25" in both
    seats["player"]["second"] = 0.251
    assert "  return +0.25  " in progress_line(result | {"learners": learners})


EVALUATED = {
    "num_episodes": 64,
    "success_rate": 0.25,
    "episode_return_mean": 1.5,
    "format_error_rate": 0.125,
    "illegal_action_rate": 0.5,
}


def printed(*results: dict[str, Any]) -> list[str]:
    """What the results of one trial, one after the other, print below their own lines."""
    stream = io.StringIO()
    callback = ProgressCallback(stream=stream)
    trial = SimpleNamespace(trial_id="a", status="RUNNING")
    for number, result in enumerate(results):
        callback.on_trial_result(0, [trial], trial, {"training_iteration": number + 1, **result})
    return [line for line in stream.getvalue().splitlines() if not line.startswith(("iter", "note: an iteration"))]


def test_an_evaluation_has_a_line_with_what_it_measured() -> None:
    nan = float("nan")
    evaluation = {"env_runners": EVALUATED, "num_healthy_workers": 2, "exploitability": 0.125, "nash_conv": nan}
    without = {"env_runners": {"success_rate": nan, "num_episodes": nan}, "exploitability": nan}
    assert printed({"evaluation": without}, {"evaluation": evaluation}, {}) == [
        "  evaluation of 64 episodes:  success 0.250  return +1.50  unreadable 0.125  illegal 0.500  "
        "exploitability 0.1250"
    ]
    over_levels = {"env_runners": EVALUATED | {"levels": 16.0, "success_low": 0.1, "success_high": 0.5}}
    assert "  success 0.250 (0.100 - 0.500 over 16 levels)  " in printed({"evaluation": over_levels})[0]
    one = {"env_runners": EVALUATED | {"levels": 1.0, "success_low": nan, "success_high": nan}}
    assert "  success 0.250 (over 1 level)  " in printed({"evaluation": one})[0]
    warm_start = {"phase": 0, "evaluation": evaluation}
    assert printed(warm_start) == [] and "  valid 0.250" in progress_line({"training_iteration": 1, **warm_start})


def test_what_a_trial_does_is_told_every_ten_seconds_until_its_first_result(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: dict[str, str] = {}
    monkeypatch.setattr(progress, "phase_of", phases.get)
    stream = io.StringIO()
    callback = ProgressCallback(since=95.0, stream=stream)
    trials = [SimpleNamespace(trial_id=name, status="PENDING") for name in "abc"]
    callback.setup()

    def wait(seconds: float) -> list[str]:
        clock.now += seconds
        before = len(stream.getvalue())
        callback.on_step_begin(0, trials)
        return stream.getvalue()[before:].splitlines()

    assert wait(9.9) == []
    assert wait(0.1) == ["[a]    15 s  starting the trial's process"]
    phases |= {"a": "starting the engines", "b": "preparing the models"}  # The third waits for its turn.
    assert wait(9.0) == []
    assert wait(1.5) == ["[a]    26 s  starting the engines", "[b]    26 s  preparing the models"]
    callback.on_trial_result(0, trials, trials[0], {"training_iteration": 1})
    trials[1].status = "ERROR"
    assert wait(60.0) == []


UNREAD = {"env_runners": {"format_error_rate": 0.97, "success_rate": 0.0}}
EQUAL = {"learners": {"player": {"advantage_min": 0.0, "advantage_max": 0.0, "zero_grad_updates": 1.0}}}


def test_that_nothing_can_be_learnt_is_said_once_and_again_after_ten_iterations() -> None:
    lines = printed(UNREAD, UNREAD, {}, *[UNREAD | EQUAL] * 12)
    assert [line.partition(":")[0] for line in lines] == ["note"] * 4
    assert "97% of the replies could not be read" in lines[0] and "reply_prefill" in lines[0]
    assert lines[1].startswith("note: player: every advantage is 0") and "group_size" in lines[1]
    assert all(line.endswith("(10 iterations in a row)") for line in lines[2:]) and "in a row" not in lines[0]


def test_dropped_episodes_are_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "phase_of", {"a/dropped": "my_game: step took longer than 60 s"}.get)
    lost = {"env_runners": {"success_rate": 0.5, "dropped": {"timeout": 4.0, "env_error": 0.0, "engine_error": 1}}}
    assert printed({}, lost, lost, {}) == [
        "note: 5 episodes were dropped, and played anew as often as allowed (timeout 4, engine_error 1): "
        "my_game: step took longer than 60 s"
    ]


@pytest.mark.parametrize("error", [RpcError("failed to connect to all addresses"), OSError("broken pipe")])
def test_a_control_service_that_does_not_answer_ends_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def fail(key: bytes, *_: Any, **__: Any) -> None:
        asked.append(key)
        raise error

    monkeypatch.setattr(internal_kv, "_internal_kv_initialized", lambda: True)
    for what in ("put", "get"):
        monkeypatch.setattr(internal_kv, f"_internal_kv_{what}", fail)
    tell_phase("a", "playing")
    assert phase_of("a") is None and asked == [b"a", b"a"]


class Started(Exception):
    """Set-up has come as far as this test needs."""


class Named(LMGamePPO):
    """Stops where models would be prepared."""

    def setup(self, config) -> None:
        with pytest.raises(Started):
            super().setup(config)


def test_gauges_carry_the_trials_name(ray_cluster, tiny_dict, monkeypatch):
    def stop(config):
        raise Started

    monkeypatch.setattr(base, "prepare_models", stop)
    seen: list[dict[str, str]] = []
    gauge = SimpleNamespace(set=lambda value, tags: seen.append(tags))
    monkeypatch.setattr(ray.util.metrics, "Gauge", lambda *arguments, **options: gauge)
    algorithm = Named(
        {**tiny_dict(), TRIAL_INFO: SimpleNamespace(trial_name="LMGamePPO_abc_00001", trial_id="abc_00001")}
    )
    LMGameGauges().on_train_result(
        algorithm=algorithm, result={"env_runners": {"success_rate": 0.5}, "learners": {"player": {"entropy": 1.0}}}
    )
    assert seen == [
        {"trial": "LMGamePPO_abc_00001", "policy": ""},
        {"trial": "LMGamePPO_abc_00001", "policy": "player"},
    ]
    assert algorithm.trial_id == "abc_00001"


def test_a_trial_is_there_before_its_first_result_and_a_warm_start_shows_what_it_measures(monkeypatch):
    """Where an iteration did not measure a number, its gauge keeps what was measured before."""
    seen: list[tuple[str, float]] = []
    monkeypatch.setattr(
        ray.util.metrics,
        "Gauge",
        lambda name, **options: SimpleNamespace(set=lambda value, tags: seen.append((name, value))),
    )
    nan, gauges, algorithm = float("nan"), LMGameGauges(), SimpleNamespace(trial_name="t")
    gauges.on_algorithm_init(algorithm=algorithm)
    assert ("lmgame_training_iteration", 0.0) in seen
    seen.clear()
    supervised = {
        "training_iteration": 3,
        "supervised_steps": 30.0,
        "rl_iteration": 0.0,
        "env_runners": {"success_rate": nan, "tokens_per_turn": nan},
        "evaluation": {"env_runners": {"success_rate": 0.25}},
        "learners": {"player": {"policy_loss": 2.5, "vf_loss": nan}},
    }
    gauges.on_train_result(algorithm=algorithm, result=supervised)
    assert dict(seen) == {
        "lmgame_training_iteration": 3.0,
        "lmgame_supervised_steps": 30.0,
        "lmgame_rl_iteration": 0.0,
        "lmgame_evaluation_success_rate": 0.25,
        "lmgame_policy_loss": 2.5,
    }
    seen.clear()
    gauges.tell_again()  # While an iteration goes on: Ray forgets what is not set again.
    assert dict(seen)["lmgame_training_iteration"] == 3.0 and len(seen) == 5


@pytest.mark.parametrize("how", ["stopped", "forgotten"])
def test_gauges_are_told_no_more_when_their_algorithm_has_ended(how, monkeypatch):
    monkeypatch.setattr(ray.util.metrics, "Gauge", lambda *_, **__: SimpleNamespace(set=lambda *_, **__: None))
    before, algorithm = set(threading.enumerate()), LMGamePPO.__new__(LMGamePPO)
    algorithm._ahead, algorithm.engine_groups, algorithm.callbacks = None, {}, [LMGameGauges()]
    monkeypatch.setattr("rllib_lmgame.telemetry.gauges.TELL_AGAIN_S", 3600.0)
    algorithm.callbacks[0].on_algorithm_init(algorithm=SimpleNamespace(trial_name="t"))
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    if how == "stopped":
        algorithm.cleanup()
    else:
        del algorithm.callbacks
    thread.join(60)
    assert not thread.is_alive()
