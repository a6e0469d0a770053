"""``benchmarks/estimators.py``: every method's settings are those of a run, and the table is that of the reports."""

from __future__ import annotations

import json
from pathlib import Path

import estimators
import pytest

from rllib_lmgame.experiments.checks.check import check_quickly
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.policies.model.tiny import build_tiny_model


@pytest.mark.parametrize("method", [*estimators.METHODS, "warm start"])
def test_settings_are_those_of_a_run(method: str, tmp_path: Path) -> None:
    if method == "warm start":
        file, settings = estimators.SUPERVISED, estimators.warm_start_settings(1)
    else:
        file = estimators.FILES.get(method, estimators.QUICKSTART)
        model = build_tiny_model(tmp_path, ["Up", "Down", "Left", "Right"])
        settings = estimators.settings(method, seed=1, turns=1000, model=str(model), teacher=str(model))
    specs = read_experiments(str(file), [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    check_quickly(specs)


def written(directory: Path, solved: int, turns: int, success: float, **more: float) -> Path:
    directory.mkdir(parents=True)
    verdicts = {
        milestone: {f"level {i}": float(i < solved + extra) for i in range(10)}
        for milestone, extra in ((estimators.FINAL, 0), (estimators.GREEDY, 1))
    }
    (directory / "report.json").write_text(json.dumps({"successes": verdicts}))
    rows = [
        {
            "training_iteration": i,
            "env_runners": {"num_env_steps_sampled_lifetime": turns * i, "success_rate": success, **more},
        }
        for i in (1, 2)
    ]
    (directory / "result.json").write_text("\n".join(map(json.dumps, rows)))
    return directory


def test_rollouts_from_states_are_turns_played(tmp_path: Path) -> None:
    trial = written(tmp_path / "vine", 5, 50, 0.5, vine_turns=700.0)
    assert estimators.turns_played(trial) == (100, 1500)


def test_table_and_figure(tmp_path: Path) -> None:
    """Means over seeds, gains over the warm start of the same seed, the best first."""
    starts = {0: written(tmp_path / "w0", 5, 0, 0.0), 1: written(tmp_path / "w1", 3, 0, 0.0)}
    trials = {
        ("gae", 0): written(tmp_path / "a", 6, 50, 0.6),
        ("gae", 1): written(tmp_path / "b", 6, 50, 0.5),
        ("grpo", 0): written(tmp_path / "c", 8, 50, 0.7),
        ("grpo", 1): written(tmp_path / "d", 7, 50, 0.8),
    }
    rows = estimators.verdicts(trials, starts)
    assert [(row["turns"], row["success"], round(row["gain"], 6)) for row in rows] == [
        (100, 0.6, 0.1),
        (100, 0.6, 0.3),
        (100, 0.8, 0.3),
        (100, 0.7, 0.4),
    ]
    lines = estimators.table(rows, starts).splitlines()
    assert lines[2] == "| warm start | 0.500 | 0.300 | 0.400 | | 0.500 | |"
    assert lines[3].startswith("| grpo | 0.800 | 0.700 | 0.750 | +0.350 (")
    assert lines[4].startswith(
        "| gae | 0.600 | 0.600 | 0.600 | +0.200 (-1.071 to +1.471) | 0.700 | +0.200 (-1.071 to +1.471) |"
    )  # t of one degree of freedom: 12.706
    assert estimators.write_rows(rows, tmp_path / "out").read_text().count("\n") == 5
    assert estimators.draw(rows, tmp_path / "out").stat().st_size > 1000
    read = estimators.read_rows(tmp_path / "out")
    assert [(row["method"], row["success"], row["gain"]) for row in read] == [
        (row["method"], row["success"], pytest.approx(row["gain"])) for row in rows
    ]
    assert not estimators.curves(trials), "evaluations were none"


def test_success_between_iterations_is_that_of_validation_levels(tmp_path: Path) -> None:
    trials = {("gae", 0): written(tmp_path / "a", 6, 50, 0.9), ("sft", 0): written(tmp_path / "b", 6, 0, 0.9)}
    for (method, _), trial in trials.items():
        rows = [json.loads(line) for line in (trial / "result.json").read_text().splitlines()]
        for number, row in enumerate(rows):
            row |= {"evaluation": {"env_runners": {"success_rate": 0.5 + 0.1 * number}}}
            row |= {"supervised_steps": 50 * (number + 1)} if method == "sft" else {}
        (trial / "result.json").write_text("\n".join(map(json.dumps, rows)))
    points = estimators.curves(trials)
    assert [(point["turns"], point["success"]) for point in points] == [
        (50, 0.5),
        (100, 0.6),
        (50 * 64, 0.5),
        (100 * 64, 0.6),
    ]
    assert estimators.draw_curves(points, tmp_path / "curves").stat().st_size > 1000


@pytest.mark.parametrize("begun", [False, True])
def test_what_was_interrupted_goes_on(begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, commands = tmp_path / "gae-0", []
    if begun:
        (directory / "trial").mkdir(parents=True)

    def run(command: list[str], check: bool) -> None:
        commands.append(command)
        written(directory / "trial-2", 5, 50, 0.5)

    monkeypatch.setattr(estimators.subprocess, "run", run)
    for _ in range(2):
        assert estimators.train(estimators.QUICKSTART, {}, directory) == directory / "trial-2"
    (command,) = commands
    assert ("--resume" in command) == begun


def test_there_must_be_rows_to_draw_again(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no .*estimators\.csv: run without --redraw"):
        estimators.read_rows(tmp_path / "estimators")
