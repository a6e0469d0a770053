"""The learning-curve figure and its tables, from small made-up results."""

from __future__ import annotations

import csv
import importlib.util
import json
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def plot() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "plot_learning_curve.py"
    spec = importlib.util.spec_from_file_location("plot_learning_curve", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def result(iteration: int, phase: int, ppo_iteration: int, success: float | None) -> dict[str, Any]:
    runners = {} if success is None else {"success_rate": success, "num_episodes": 256}
    return {
        "training_iteration": iteration,
        "phase": phase,
        "ppo_iteration": ppo_iteration,
        "time_total_s": 2.0 * iteration,
        "env_runners": runners,
    }


def write_trial(directory: Path, results: list[dict[str, Any]], report: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True)
    (directory / "result.json").write_text("\n".join(json.dumps(r) for r in results) + "\n", encoding="utf-8")
    if report is not None:
        (directory / "report.json").write_text(json.dumps(report), encoding="utf-8")
    return directory


def levels(*successes: float) -> dict[str, float]:
    return {f"lmgame/Sokoban-v0 {seed}": float(success) for seed, success in enumerate(successes)}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    root = tmp_path / "quickstart"
    warm = [result(1, 0, 0, None), result(2, 0, 0, 0.9)]
    report = {
        "episodes": 4,
        "split": "test",
        "successes": {"after warm start": levels(1, 0, 0, 0), "after PPO": levels(1, 1, 1, 0)},
    }
    write_trial(root / "seed0", [*warm, *(result(2 + i, 1, i, 0.4 + 0.01 * i) for i in range(1, 11))], report)
    write_trial(root / "seed1", [*warm, *(result(2 + i, 1, i, 0.5 + 0.01 * i) for i in range(1, 13))], report)
    return root


def test_warm_start_is_not_part_of_the_curve(plot: ModuleType, experiment: Path) -> None:
    curve = plot.read_curve(experiment / "seed0")
    assert curve.iterations == list(range(1, 11))
    assert curve.values[0] == pytest.approx(0.41)
    assert curve.seconds[0] == 6.0


def test_progress_csv_says_the_same_as_result_json(plot: ModuleType, experiment: Path, tmp_path: Path) -> None:
    from_json = plot.read_curve(experiment / "seed0")
    directory = tmp_path / "csv" / "seed0"
    directory.mkdir(parents=True)
    rows = [json.loads(line) for line in (experiment / "seed0" / "result.json").read_text().splitlines()]
    with (directory / "progress.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["training_iteration", "phase", "ppo_iteration", "time_total_s", "env_runners/success_rate", "date"]
        )
        for row in rows:
            success = row["env_runners"].get("success_rate", "")
            writer.writerow(
                [row["training_iteration"], row["phase"], row["ppo_iteration"], row["time_total_s"], success, "today"]
            )
    from_csv = plot.read_curve(directory)
    assert (from_csv.iterations, from_csv.values, from_csv.seconds) == (
        from_json.iterations,
        from_json.values,
        from_json.seconds,
    )


def test_a_restarted_trial_counts_each_iteration_once(plot: ModuleType, tmp_path: Path) -> None:
    first = [result(i, 1, i, 0.1) for i in range(1, 6)]
    again = [result(i, 1, i, 0.2) for i in range(4, 8)]
    curve = plot.read_curve(write_trial(tmp_path / "trial", first + again))
    assert curve.iterations == list(range(1, 8))
    assert curve.values == [0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2]


def test_mean_is_over_iterations_that_all_trials_have(plot: ModuleType, experiment: Path) -> None:
    curves = [plot.read_curve(path) for path in plot.trial_directories([experiment])]
    iterations, values = plot.mean_curve(curves)
    assert iterations == list(range(1, 11))
    assert values[0] == pytest.approx((0.41 + 0.51) / 2)


def test_trials_that_differ_in_the_seed_alone_are_seeds_of_one_run(
    plot: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    for name, success in (("grpo", 0.2), ("rloo", 0.6)):
        for seed in (0, 1):
            trial = write_trial(tmp_path / f"{name}_{seed}", [result(1, 1, 1, success + 0.1 * seed)])
            params = {"seed": seed, "lr": 1e-4, "token_ppo": {"advantage_estimator": name}}
            (trial / "params.json").write_text(json.dumps(params), encoding="utf-8")
    curves = [plot.read_curve(path) for path in plot.trial_directories([tmp_path])]
    runs = plot.seeds_of_runs(curves)
    assert [[curve.name for curve in run] for run in runs] == [["grpo_0", "grpo_1"], ["rloo_0", "rloo_1"]]
    assert [plot.mean_curve(run)[1] for run in runs] == [[pytest.approx(0.25)], [pytest.approx(0.65)]]
    drawn, axes = pyplot.subplots()
    monkeypatch.setattr(plot, "figure", lambda path: nullcontext(axes))
    plot.draw(curves, tmp_path / "curve", plot.METRIC, "")
    assert axes.get_legend_handles_labels()[1] == [
        "grpo_0, training levels, mean of 2 seeds",
        "rloo_0, training levels, mean of 2 seeds",
    ]
    axes.clear()
    for curve in curves:
        curve.experiment, curve.values = curve.name.partition("_")[0], [0.4]
    plot.draw(curves, tmp_path / "curve", "evaluation/exploitability", "")
    (table,) = plot.write_tables(curves, tmp_path / "curve", "evaluation/exploitability")
    assert [line.partition(",")[0] for line in table.read_text().splitlines()[1:]] == [
        f"{method}/{method}_{seed}" for method in ("grpo", "rloo") for seed in (0, 1)
    ]
    assert axes.get_legend_handles_labels()[1] == ["grpo, mean of 2 seeds", "rloo, mean of 2 seeds"]
    pyplot.close(drawn)


def test_experiments_of_which_nothing_is_known_are_runs_of_their_own(plot: ModuleType, tmp_path: Path) -> None:
    trials = [(name, seed) for name in ("league", "selfplay") for seed in (0, 1)]
    for name, seed in trials:
        write_trial(tmp_path / name / f"{name}_{seed}", [result(1, 1, 1, 0.5)])
    curves = [plot.read_curve(path) for path in plot.trial_directories(sorted(tmp_path.iterdir()))]
    runs = [[(curve.experiment, int(curve.name[-1])) for curve in run] for run in plot.seeds_of_runs(curves)]
    assert runs == [trials[:2], trials[2:]]


def test_without_a_report_the_newest_checkpoint_has_the_milestones(plot: ModuleType, tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "trial", [result(1, 1, 1, 0.5)])
    assert plot.read_curve(trial).heldout == {}
    for number, verdicts in (("000000", levels(0)), ("000001", levels(1))):
        (trial / f"checkpoint_{number}").mkdir()
        (trial / f"checkpoint_{number}" / "milestones.json").write_text(
            json.dumps({"after warm start": verdicts}), encoding="utf-8"
        )
    assert plot.read_curve(trial).heldout == {"after warm start": [("lmgame/Sokoban-v0 0", 1.0)]}


def test_smoothing_keeps_a_line_and_its_length(plot: ModuleType) -> None:
    assert plot.smoothed([3.0] * 12) == [3.0] * 12
    line = [float(i) for i in range(20)]
    assert plot.smoothed(line, 5)[2:-2] == pytest.approx(line[2:-2])
    assert plot.smoothed([1.0, 2.0], 9) == [1.5, 1.5]


def test_figure_and_tables_are_written(
    plot: ModuleType, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "figures" / "curve"
    assert plot.main([str(experiment), "--out", str(out), "--title", "made up"]) == 0
    names = [Path(line).name for line in capsys.readouterr().out.split()]
    assert names == ["curve.png", "curve.csv", "curve-heldout.csv"]
    assert (out.parent / "curve.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((out.parent / "curve.csv").open()))
    assert len(rows) == 10 + 12 and rows[0]["trial"] == "seed0" and float(rows[0]["env_runners/success_rate"]) == 0.41
    heldout = list(csv.DictReader((out.parent / "curve-heldout.csv").open()))
    after = next(row for row in heldout if row["milestone"] == "after PPO")
    assert (
        float(after["success"]) == 0.75 and float(after["low"]) < 0.75 < float(after["high"]) and after["levels"] == "4"
    )


@pytest.mark.parametrize("missing", ["directory", "results", "metric"])
def test_what_is_missing_is_named(
    plot: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    trial = tmp_path / "trial"
    if missing == "results":
        trial.mkdir()
    elif missing == "metric":
        write_trial(trial, [{"training_iteration": 1, "env_runners": {"episode_return_mean": 1.0}}])
    assert plot.main([str(trial), "--out", str(tmp_path / "curve")]) == 2
    message = capsys.readouterr().err
    words = {"directory": "no such directory", "results": "result.json", "metric": "env_runners/episode_return_mean"}
    assert str(trial) in message and words[missing] in message
    assert not (tmp_path / "curve.png").exists()
