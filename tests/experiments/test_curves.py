"""Learning curves, and `rllib compare`: figures, tables and what differs, from small made-up results."""

from __future__ import annotations

import csv
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli.main import main
from rllib_lmgame.experiments.results import comparison
from rllib_lmgame.experiments.results import curves as plot
from rllib_lmgame.experiments.results.comparison import COMPARED, compare, draw, print_comparison
from rllib_lmgame.measures.statistics import mean_interval

SUCCESS = plot.METRICS[0]


def result(iteration: int, phase: int, rl_iteration: int, success: float | None) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "phase": phase,
        "rl_iteration": rl_iteration,
        "time_total_s": 2.0 * iteration,
        "env_runners": {} if success is None else {"success_rate": success, "num_episodes": 256},
    }


def write_trial(directory: Path, results: list[dict[str, Any]], **files: Any) -> Path:
    """A trial with its results, and other JSON files by name."""
    directory.mkdir(parents=True)
    (directory / "result.json").write_text("\n".join(json.dumps(r) for r in results) + "\n", encoding="utf-8")
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


def levels(*successes: float) -> dict[str, float]:
    return {f"lmgame/Sokoban-v0 {seed}": float(success) for seed, success in enumerate(successes)}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two seeds with a warm start of two iterations, then 10 and 12 of PPO."""
    verdicts = {"after warm start": levels(1, 0, 0, 0), "after training": levels(1, 1, 1, 0)}
    report = {"episodes": 4, "split": "test", "successes": verdicts}
    for seed, last in ((0, 10), (1, 12)):
        played = [result(2 + i, 1, i, 0.4 + 0.1 * seed + 0.01 * i) for i in range(1, last + 1)]
        warm = [result(1, 0, 0, None), result(2, 0, 0, 0.9)]
        write_trial(tmp_path / "quickstart" / f"seed{seed}", warm + played, report=report)
    return tmp_path / "quickstart"


def test_curves_begin_behind_the_warm_start_and_their_mean_has_what_all_have(experiment: Path) -> None:
    first, second = (plot.read_curve(path, SUCCESS) for path in plot.trial_directories([experiment]))
    assert first.iterations == list(range(1, 11)) and first.seconds[0] == 6.0
    iterations, means = plot.mean_curve([first, second])
    assert iterations == list(range(1, 11)) and means[0] == pytest.approx(mean_interval([0.41, 0.51]))


def test_seeds_measured_at_other_iterations_have_a_mean() -> None:
    first = plot.Curve("a", iterations=[10, 20, 30], values=[0.0, 1.0, 0.0])
    iterations, means = plot.mean_curve([first, plot.Curve("b", iterations=[15, 25, 40], values=[0.5, 0.5, 0.8])])
    assert iterations == [15, 20, 25, 30]
    assert [mean for mean, _, _ in means] == pytest.approx([0.5, 0.75, 0.5, 0.3])
    assert all(low < mean < high for mean, low, high in means[1:2])
    again = plot.Curve("a", iterations=[1, 1, 2], values=[0.0, 0.5, 1.0], intervals=[(None, None)] * 3)
    assert plot.mean_curve([again])[0] == [1, 2]  # An iteration that came twice.


def test_the_figure_has_bands_whole_numbers_and_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of two runs with three seeds, evaluated four times, and of a long one that is averaged."""
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    monkeypatch.setattr(comparison, "figure", lambda path: nullcontext(axes))
    curves = [
        plot.Curve(f"{lr}{seed}", "sweep", [1, 2, 3, 4], [lr, lr + seed, lr, lr], settings={"lr": lr}, seed=seed)
        for lr in (0.25, 0.5)
        for seed in (0, 1, 2)
    ]
    draw(curves, tmp_path / "figure", "evaluation/env_runners/success_rate", "")
    assert [line.get_label() for line in axes.get_lines() if not line.get_label().startswith("_")] == [
        f"lr={lr}, mean of 3 seeds, 95 % interval" for lr in (0.25, 0.5)
    ]
    assert len(axes.collections) == 2 and all(line.get_marker() == "o" for line in axes.get_lines())
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert axes.get_ylabel() == "success rate in evaluations" and axes.get_xlabel() == "iteration"
    axes.clear()
    draw([plot.Curve("a", "b", [*range(40)], [0.5] * 40)], tmp_path / "figure", SUCCESS, "")
    assert axes.get_ylabel() == "success rate on training levels,\nmean of 9 iterations"


def test_a_trial_without_results_is_left_out_and_named(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sweep / "a" / "result.json").write_text("")
    assert main(["compare", str(sweep), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [run["seeds"] for run in json.loads(out)["runs"]] == [[1], [0]]
    assert err.splitlines() == [f"note: left out: {sweep / 'a'}: its file of results has no whole line"]


def test_the_best_trial_of_a_sweep_is_what_is_evaluated(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot.best_of_sweep(str(sweep)) == str(sweep)  # There is no checkpoint.
    for name in "abc":
        (sweep / name / "checkpoint_000000").mkdir()
        (sweep / name / "checkpoint_000000" / "rllib_checkpoint.json").touch()
    assert plot.best_of_sweep(str(sweep)) == str(sweep / "c") and "the best of 3 trials by" in capsys.readouterr().err
    assert plot.best_of_sweep(str(sweep / "a")) == str(sweep / "a")
    assert main(["evaluate", str(sweep)]) != 0  # It is a made-up checkpoint.
    assert str(sweep / "c") in capsys.readouterr().err


def test_a_sum_of_returns_that_never_changes_is_no_default_curve(tmp_path: Path) -> None:
    """As in self-play of a zero-sum game: the first seat's return is one."""
    runners = {"episode_return_mean": 0.0, "seat_returns_mean": {"player": {"first": 0.25}}}
    rows = [{"training_iteration": i, "env_runners": runners} for i in (1, 2)]
    trial = write_trial(tmp_path / "trial", rows)
    assert plot.read_curves([trial])[1] == "env_runners/seat_returns_mean/player/first"
    rows[0]["env_runners"] = {**runners, "episode_return_mean": 1.0}
    assert plot.read_curves([write_trial(tmp_path / "other", rows)])[1] == "env_runners/episode_return_mean"


def test_a_restarted_trial_counts_each_iteration_once(tmp_path: Path) -> None:
    played = [result(i, 1, i, 0.1) for i in range(1, 6)] + [result(i, 1, i, 0.2) for i in range(4, 8)]
    curve = plot.read_curve(write_trial(tmp_path / "trial", played), SUCCESS)
    assert curve.iterations == list(range(1, 8)) and curve.values == [0.1] * 3 + [0.2] * 4


@pytest.mark.parametrize("known", [True, False])
def test_trials_that_differ_in_the_seed_alone_are_seeds_of_one_run(known: bool, tmp_path: Path) -> None:
    """Told by their settings; where these are not known, by the experiment's directory."""
    names = ("grpo", "rloo")
    for name in names:
        for seed in (0, 1):
            params = {"params": {"seed": seed, "lr": 1e-4, "training": {"advantage_estimator": name}}}
            directory = tmp_path if known else tmp_path / name
            write_trial(directory / f"{name}_{seed}", [result(1, 1, 1, 0.5)], **(params if known else {}))
    roots = [tmp_path] if known else sorted(tmp_path.iterdir())
    curves = [plot.read_curve(path, SUCCESS) for path in plot.trial_directories(roots)]
    runs = [[curve.name for curve in run] for run in plot.seeds_of_runs(curves)]
    assert runs == [[f"{name}_0", f"{name}_1"] for name in names]


def test_algorithms_of_one_configuration_are_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ppo", "grpo"):
        write_trial(tmp_path / name / "trial", [result(1, 1, 1, 0.5)], params={"seed": 0, "lr": 1e-4})
        settings = {"run": f"LMGame{name.upper()}"}
        (tmp_path / name / plot.EXPERIMENT_FILE).write_text(json.dumps(settings), encoding="utf-8")
    assert main(["compare", str(tmp_path / "ppo"), str(tmp_path / "grpo")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ppo", "0", "1", "0.5"] in lines and ["grpo", "0", "1", "0.5"] in lines
    assert ["algorithm", "'LMGamePPO'", "'LMGameGRPO'"] in lines


def test_without_a_report_the_newest_checkpoint_has_the_milestones(tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "trial", [result(1, 1, 1, 0.5)])
    assert plot.read_curve(trial, SUCCESS).heldout == {}
    for number in (0, 1):
        (trial / f"checkpoint_00000{number}").mkdir()
        verdicts = json.dumps({"after warm start": levels(number)})
        (trial / f"checkpoint_00000{number}" / "milestones.json").write_text(verdicts, encoding="utf-8")
    assert plot.read_curve(trial, SUCCESS).heldout == {"after warm start": [("lmgame/Sokoban-v0 0", 1.0)]}


def test_figure_and_tables_are_written(experiment: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "figures" / "curve"
    assert main(["compare", str(experiment), "--out", str(out), "--title", "made up"]) == 0
    assert (out.parent / "curve.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((out.parent / "curve.csv").open()))
    assert len(rows) == 10 + 12 and rows[0]["trial"] == "seed0" and float(rows[0]["env_runners/success_rate"]) == 0.41
    heldout = list(csv.DictReader((out.parent / "curve-heldout.csv").open()))
    after = next(row for row in heldout if row["milestone"] == "after training")
    assert float(after["low"]) < float(after["success"]) == 0.75 < float(after["high"]) and after["levels"] == "4"


@pytest.mark.parametrize(
    ("results", "named"),
    [
        (None, "no such directory"),
        ([], "result.json: it is no trial, or one without a result"),
        ([{"training_iteration": 1, "env_runners": {"episode_return_mean": 1.0}}], "env_runners/episode_return_mean"),
    ],
)
def test_what_is_missing_is_named(
    results: list[Any] | None, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = tmp_path / "trial"
    if results:
        write_trial(trial, results)
    elif results is not None:
        trial.mkdir()
    assert main(["compare", str(trial), "--out", str(tmp_path / "curve"), "--metric", SUCCESS]) == 2
    message = capsys.readouterr().err
    assert str(trial) in message and named in message and not (tmp_path / "curve.png").exists()


def test_a_line_that_is_cut_off_ends_the_results_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "trial", [result(i, 1, i, 0.5) for i in (1, 2, 3)], report={"successes": {"a": 3}})
    whole = (trial / "result.json").read_text()
    (trial / "result.json").write_text(whole[:-20])
    with pytest.raises(ConfigError, match=r"report\.json is damaged"):
        plot.read_curve(trial, SUCCESS)
    (trial / "report.json").unlink()
    assert plot.read_curve(trial, SUCCESS).iterations == [1, 2]
    (trial / "params.json").write_text("{")
    with pytest.raises(ConfigError, match=r"params\.json is damaged"):
        plot.read_curve(trial, SUCCESS)
    (trial / "result.json").write_text(whole[:5])
    with pytest.raises(ConfigError, match="no whole line"):
        plot.read_results(trial)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two seeds of one learning rate, one of another, whose evaluation tells an interval."""
    directory = tmp_path / "sweep"
    for name, lr, seed, value in (("a", 0.1, 0, 0.4), ("b", 0.1, 1, 0.6), ("c", 0.2, 0, 0.9)):
        evaluated = {"success_rate": value, "success_low": value - 0.1, "success_high": value + 0.05}
        rows = [{**result(i, 1, i, value), "evaluation": {"env_runners": evaluated, "gap": 0.25}} for i in range(1, 12)]
        params = {"seed": seed, "lr": lr, "training": {"policy_loss": {"clip_high": lr}, "num_minibatches": 2}}
        write_trial(directory / name, rows, params=params)
    return directory


def test_seeds_have_intervals_over_seeds_and_a_single_run_those_of_its_evaluation(sweep: Path) -> None:
    curves, metric, _ = plot.read_curves(plot.trial_directories([sweep]))
    said = compare(curves, metric)
    assert [run["trials"] for run in said["runs"]] == [["a", "b"], ["c"]] and metric == SUCCESS
    of_seeds, of_one = (run["figures"]["evaluation/" + SUCCESS] for run in said["runs"])
    assert of_seeds[0] == pytest.approx(0.5) and of_seeds[1:] == (0.0, 1.0)  # t of two values: 12.7 x 0.1
    assert of_one == pytest.approx((0.9, 0.8, 0.95))
    assert said["runs"][1]["figures"]["evaluation/gap"] == (0.25, None, None)
    first, second = "lr=0.1 clip_high=0.1", "lr=0.2 clip_high=0.2"
    assert [run["name"] for run in said["runs"]] == [first, second]
    assert said["differing"] == {key: {first: 0.1, second: 0.2} for key in ("lr", "training.policy_loss.clip_high")}


def test_the_table_and_the_json_say_what_is_compared(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = [str(sweep / name) for name in "abc"]
    assert main(["compare", *trials, str(sweep)]) == 0  # The trials named twice count once.
    head, first, second, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "seeds", "iterations", SUCCESS, f"evaluation/{SUCCESS}", "evaluation/gap"]
    assert first.split()[:5] == ["lr=0.1", "clip_high=0.1", "0,", "1", "11"] and "0.9 (0.8 - 0.95)" in second
    assert main(["compare", str(sweep), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][1]["figures"]["evaluation/gap"] == [0.25, None, None]


def test_a_run_from_files_is_compared_by_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Supervised runs and DPO from files play no games; their evaluation or their loss is there."""
    rows = [{"training_iteration": i, "env_runners": {}, "validation_loss": 1.0 / i} for i in (1, 2)]
    assert main(["compare", str(write_trial(tmp_path / "sft" / "trial", rows))]) == 0
    assert "validation_loss: last measured;" in capsys.readouterr().out
    learnt = [{"training_iteration": 1, "learners": {"player": {"policy_loss": 0.5}}}]
    assert main(["compare", str(write_trial(tmp_path / "pairs" / "trial", learnt))]) == 0
    assert "learners/player/policy_loss: last measured;" in capsys.readouterr().out
    evaluated = [{**row, "evaluation": {"env_runners": {"success_rate": 0.5}}} for row in rows[:1]]
    assert main(["compare", str(write_trial(tmp_path / "dpo" / "trial", evaluated))]) == 0
    assert f"evaluation/{SUCCESS}: last measured;" in capsys.readouterr().out


def test_a_sweep_ends_with_its_curves_and_the_means_of_seeds(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    print_comparison(sweep, [sweep / name for name in "abc"])
    text = capsys.readouterr().out
    assert (
        text.splitlines()[1].split()[:4] == ["lr=0.1", "clip_high=0.1", "0,", "1"]
        and str(sweep / f"{COMPARED}.png") in text
    )
    assert (sweep / f"{COMPARED}.png").read_bytes().startswith(b"\x89PNG")
    for name in "abc":
        (sweep / name / "result.json").unlink()
    print_comparison(sweep, [sweep / name for name in "abc"])
    assert "no comparison of the trials" in capsys.readouterr().err
