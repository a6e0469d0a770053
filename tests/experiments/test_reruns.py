"""Runs of one name one after another, and the ranking at the end of a sweep."""

from __future__ import annotations

import fcntl
import json
import math

from rllib_lmgame.base.lock import LOCK_FILE
from rllib_lmgame.experiments.results.outcome import TrialSummary, print_ranking
from rllib_lmgame.experiments.run.resume import place_runs
from rllib_lmgame.experiments.spec import ExperimentSpec, Source, make_spec


def spec(storage, name: str = "sweep", **settings) -> ExperimentSpec:
    return make_spec(
        name, {"run": "PPO", "env": "CartPole-v1", "storage_path": str(storage), **settings}, Source("x.yaml")
    )


def ran(storage, name: str):
    (storage / name).mkdir(parents=True)
    (storage / name / "experiment_state-2026.json").write_text("{}")
    return storage / name


def placed(storage, *names: str, resume: bool = False) -> list[ExperimentSpec]:
    specs = [spec(storage, name) for name in names]
    place_runs(specs, resume=resume)
    return specs


def test_a_rerun_has_a_directory_of_its_own_and_resume_takes_the_last(tmp_path) -> None:
    (first,) = placed(tmp_path, "a")
    assert first.name == "a" and first.notices == []
    ran(tmp_path, "a")
    (second,) = placed(tmp_path, "a")
    assert second.name == "a-2" and "has been run before" in second.notices[0]
    assert str(tmp_path / "a-2") in second.notices[0]
    ran(tmp_path, "a-2")
    assert placed(tmp_path, "a")[0].name == "a-3"
    (resumed,) = placed(tmp_path, "a", resume=True)
    assert resumed.name == "a-2" and "going on with the last one" in resumed.notices[0]
    assert placed(tmp_path, "b", resume=True)[0].name == "b", "that there is nothing to resume is said by the run"


def test_a_run_that_is_still_going_is_left_to_its_lock(tmp_path) -> None:
    with (ran(tmp_path, "a") / LOCK_FILE).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert placed(tmp_path, "a")[0].name == "a"
    assert placed(tmp_path, "a")[0].name == "a-2"


def test_remote_storage_is_left_as_it_is() -> None:
    remote = make_spec("a", {"run": "PPO", "env": "CartPole-v1", "storage_path": "s3://bucket/x"}, Source("x.yaml"))
    place_runs([remote], resume=False)
    assert remote.name == "a" and remote.notices == []


# -- ranking ----------------------------------------------------------------------------------------------------


def trial(storage, number: int, values: list[float], error: str | None = None) -> TrialSummary:
    path = storage / str(number)
    path.mkdir()
    results = [
        {"training_iteration": i, "env_runners": {"success_rate": v}, "config": {"lr": 1}}
        for i, v in enumerate(values, 1)
    ]
    (path / "result.json").write_text("".join(json.dumps(result) + "\n" for result in results))
    last = results[-1] if results else {}
    return TrialSummary(
        "sweep", f"t{number}", str(path), None, last_result=last, parameters={"lr": number}, error=error
    )


def test_a_sweep_ends_with_its_ranking(tmp_path, capsys) -> None:
    trials = [
        trial(tmp_path, 1, [0.1, 0.2]),
        trial(tmp_path, 2, [0.9, math.nan]),
        trial(tmp_path, 3, [], error="no luck"),
        trial(tmp_path, 4, [0.5]),
    ]
    print_ranking(spec(tmp_path), trials)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "sweep, best first by env_runners/success_rate (max, last measured)"
    assert [line.split()[2].rstrip(",") for line in lines[:3]] == ["lr=2", "lr=4", "lr=1"]
    assert "0.9" in lines[0] and "never measured" in lines[3] and "(failed)" in lines[3]


def test_the_metric_of_the_scheduler_or_the_checkpoints_ranks(tmp_path, capsys) -> None:
    trials = [trial(tmp_path, 1, [0.1]), trial(tmp_path, 2, [0.9])]
    scheduler = {"type": "asha", "metric": "env_runners/success_rate", "mode": "min"}
    print_ranking(spec(tmp_path, scheduler=scheduler), trials)
    assert "1. 0.1" in capsys.readouterr().out.splitlines()[1]
    print_ranking(spec(tmp_path, checkpoint_config={"checkpoint_score_attribute": "training_iteration"}), trials)
    assert "best first by training_iteration (max" in capsys.readouterr().out
    print_ranking(spec(tmp_path), trials[:1])
    assert capsys.readouterr().out == ""
