"""Draws the learning curves of runs, each of one seed or several, and writes the numbers behind them.

    python benchmarks/plot_learning_curve.py TRIAL [TRIAL ...] --out docs/results/quickstart

A TRIAL is a trial's directory (it holds ``result.json`` or ``progress.csv``, and ``report.json`` or a checkpoint with
``milestones.json`` where held-out levels were played), or the directory of an experiment, which stands for all its
trials. Trials whose configurations (Tune's ``params.json``) differ in nothing but the seed are seeds of one run, of
which the figure has the mean. Written are ``OUT.png``, ``OUT.csv`` (the curves) and, with held-out levels,
``OUT-heldout.csv``.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rllib_lmgame.measures.statistics import rate_over_levels
from rllib_lmgame.rollouts.episodes import seed_and_level

METRIC = "env_runners/success_rate"
SMOOTHING = 9


class PlotError(Exception):
    """There is nothing to draw; the message says what is missing where."""


@dataclass
class Curve:
    """One trial.

    Attributes:
        name: Of its directory.
        experiment: Of the directory above.
        iterations: PPO iterations (training iterations where the algorithm has no phases).
        values: The metric at each.
        seconds: Wall time since the start of the trial at each.
        heldout: Milestone -> level and verdict of each held-out episode.
        settings: Its configuration without the seed, empty where it is not known.
    """

    name: str
    experiment: str = ""
    iterations: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    heldout: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def read_curve(directory: Path, metric: str = METRIC) -> Curve:
    """The curve of one trial; iterations of the warm start are left out.

    Raises:
        PlotError: if the trial has no results, or none with the metric.
    """
    experiment = directory.absolute().parent.name
    curve = Curve(directory.name, experiment, heldout=read_heldout(directory), settings=read_settings(directory))
    rows = read_results(directory)
    for row in rows:
        value = row.get(metric)
        if row.get("phase", 1.0) != 1.0 or value is None or math.isnan(value):
            continue
        curve.iterations.append(row.get("ppo_iteration", row.get("training_iteration", len(curve.iterations) + 1.0)))
        curve.values.append(value)
        curve.seconds.append(row.get("time_total_s", math.nan))
    if not curve.values:
        known = sorted({key for row in rows for key in row if "success" in key or "return_mean" in key})
        raise PlotError(f"{directory}: no result has {metric}; there is {', '.join(known) or 'no such metric'}")
    return curve


def read_results(directory: Path) -> list[dict[str, float]]:
    """A trial's results, keys joined by ``/``; of a restarted trial the last result of each iteration counts."""
    if (directory / "result.json").is_file():
        lines = (directory / "result.json").read_text(encoding="utf-8").splitlines()
        rows = [dict(_flat(json.loads(line))) for line in lines if line.strip()]
    elif (directory / "progress.csv").is_file():
        with (directory / "progress.csv").open(encoding="utf-8", newline="") as file:
            rows = [dict(_numbers(row)) for row in csv.DictReader(file)]
    else:
        raise PlotError(f"{directory}: holds neither result.json nor progress.csv; name the directory of a trial")
    last = {row.get("training_iteration", float(i)): row for i, row in enumerate(rows)}
    return [last[iteration] for iteration in sorted(last)]


def read_heldout(directory: Path) -> dict[str, list[tuple[str, float]]]:
    """Milestone -> level and success of each held-out episode, from ``report.json`` or the newest checkpoint's
    ``milestones.json``.
    """
    if (directory / "report.json").is_file():
        milestones = json.loads((directory / "report.json").read_text(encoding="utf-8"))["successes"]
    else:
        saved = sorted(directory.glob("checkpoint_*/milestones.json"))
        milestones = json.loads(saved[-1].read_text(encoding="utf-8")) if saved else {}
    return {
        name: [(seed_and_level(seed)[1], success) for seed, success in successes.items()]
        for name, successes in milestones.items()
        if successes
    }


def success_over_levels(verdicts: Sequence[tuple[str, float]]) -> tuple[int, float, float, float]:
    """Levels, lower bound, success and upper bound; the bounds of a single level are 0 and 1."""
    rate = rate_over_levels([success for _, success in verdicts], [level for level, _ in verdicts])
    low, high = rate.interval or (0.0, 1.0)
    return rate.levels, low, rate.mean, high


def read_settings(directory: Path) -> dict[str, Any]:
    """A trial's configuration without its seed, from ``params.json`` if it is there."""
    file = directory / "params.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {key: value for key, value in settings.items() if key != "seed"}


def trial_directories(paths: Iterable[Path]) -> list[Path]:
    """Trials named, and those of the experiments named."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise PlotError(f"{path}: no such directory")
        trials = sorted(
            p
            for p in path.iterdir()
            if p.is_dir() and ((p / "result.json").is_file() or (p / "progress.csv").is_file())
        )
        found += trials or [path]
    return found


def smoothed(values: Sequence[float], window: int = SMOOTHING) -> list[float]:
    """Centred moving average; the window shrinks at the ends."""
    half = window // 2
    return [fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def seeds_of_runs(curves: Sequence[Curve]) -> list[list[Curve]]:
    """The trials of each run: those that differ in the seed alone; settings that are not known are taken to be alike
    within one experiment.
    """
    runs: list[list[Curve]] = []

    def kind(curve: Curve) -> Any:
        return curve.settings or curve.experiment

    for curve in curves:
        same = [run for run in runs if kind(run[0]) == kind(curve)]
        if same:
            same[0].append(curve)
        else:
            runs.append([curve])
    return runs


def mean_curve(curves: Sequence[Curve]) -> tuple[list[float], list[float]]:
    """Mean over trials at the iterations that all of them have."""
    shared = sorted(set.intersection(*(set(curve.iterations) for curve in curves)))
    tables = [dict(zip(curve.iterations, curve.values, strict=True)) for curve in curves]
    return shared, [fmean(table[i] for table in tables) for i in shared]


def write_tables(curves: Sequence[Curve], out: Path, metric: str) -> list[Path]:
    """Write the CSV files; returns their paths. Trials of several experiments are named ``EXPERIMENT/TRIAL``."""
    written = [out.with_name(out.name + ".csv")]
    several = len({curve.experiment for curve in curves}) > 1
    names = [f"{curve.experiment}/{curve.name}" if several else curve.name for curve in curves]
    with written[0].open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "iteration", "time_s", metric])
        for name, curve in zip(names, curves, strict=True):
            for iteration, seconds, value in zip(curve.iterations, curve.seconds, curve.values, strict=True):
                writer.writerow(
                    [name, f"{iteration:g}", "" if math.isnan(seconds) else f"{seconds:.1f}", f"{value:.6g}"]
                )
    if any(curve.heldout for curve in curves):
        written.append(out.with_name(out.name + "-heldout.csv"))
        with written[1].open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["trial", "milestone", "levels", "success", "low", "high"])
            for name, curve in zip(names, curves, strict=True):
                for milestone, verdicts in curve.heldout.items():
                    levels, low, rate, high = success_over_levels(verdicts)
                    writer.writerow([name, milestone, levels, f"{rate:.4f}", f"{low:.4f}", f"{high:.4f}"])
    return written


def draw(curves: Sequence[Curve], out: Path, metric: str, title: str) -> Path:
    """Draw the figure: every trial faintly, the mean of each run (smoothed, if the metric is one of training, which
    every iteration has), held-out levels as points with 95 % intervals. Runs are named by their experiments, or by a
    trial where these are the same.
    """
    path = out.with_name(out.name + ".png")
    with figure(path) as axes:
        runs = seeds_of_runs(curves)
        names = [run[0].experiment for run in runs]
        names = names if len(set(names)) == len(runs) else [run[0].name for run in runs]
        for number, (name, run) in enumerate(zip(names, runs, strict=True)):
            _draw_run(axes, run, f"C{number}", name if len(runs) > 1 else "", metric.startswith("env_runners/"))
        axes.set_xlabel("PPO iteration")
        axes.set_ylabel(metric.split("/")[-1].replace("_", " "))
        axes.set_title(title)
    return path


@contextmanager
def figure(path: Path) -> Iterator[Any]:
    """Axes to draw on; the figure is written at the end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(figsize=(7.2, 4.2), dpi=140)
    try:
        yield axes
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", fontsize=8)
        drawn.tight_layout()
        drawn.savefig(path, metadata={"Software": None})
    finally:
        pyplot.close(drawn)


def _draw_run(axes: Any, curves: Sequence[Curve], colour: str, name: str, of_training: bool) -> None:
    """The trials of one run; ``name`` tells it from others."""
    for curve in curves:
        axes.plot(curve.iterations, curve.values, color=colour, alpha=0.25, linewidth=1)
    iterations, values = mean_curve(curves)
    parts = (name, "training levels" if of_training else "", f"mean of {len(curves)} seeds" if len(curves) > 1 else "")
    shown = smoothed(values) if of_training else values
    axes.plot(iterations, shown, color=colour, linewidth=2, label=", ".join(filter(None, parts)))
    _draw_heldout(axes, curves, f"{name}, " if name else "", colour if name else None)


def _draw_heldout(axes: Any, curves: Sequence[Curve], name: str, colour_of_run: str | None) -> None:
    last = max(curve.iterations[-1] for curve in curves)
    places = {
        "before warm start": (0.0, "tab:gray"),
        "after warm start": (0.0, "tab:orange"),
        "after PPO": (last, "tab:green"),
    }
    for milestone, (place, colour) in places.items():
        verdicts = [verdict for curve in curves for verdict in curve.heldout.get(milestone, [])]
        if not verdicts:
            continue
        _, low, rate, high = success_over_levels(verdicts)
        spread = [[max(0.0, rate - low)], [max(0.0, high - rate)]]
        axes.errorbar(
            [place],
            [rate],
            yerr=spread,
            fmt="o",
            capsize=4,
            color=colour_of_run or colour,
            label=f"{name}held-out levels {milestone}: {rate:.3f}",
        )


def _flat(result: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _numbers(row: Mapping[str, str]) -> Iterable[tuple[str, float]]:
    for key, text in row.items():
        try:
            yield key, float(text)
        except (TypeError, ValueError):
            continue


def main(argv: list[str] | None = None) -> int:
    """Draw; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="+", type=Path, metavar="TRIAL", help="directories of trials or experiments")
    parser.add_argument(
        "--out", type=Path, default=Path("learning-curve"), help="path of the files to write, without ending"
    )
    parser.add_argument("--metric", default=METRIC, help=f"metric to draw (default: {METRIC})")
    parser.add_argument("--title", default="", help="title of the figure")
    arguments = parser.parse_args(argv)
    try:
        curves = [read_curve(directory, arguments.metric) for directory in trial_directories(arguments.trials)]
    except PlotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    written = [
        draw(curves, arguments.out, arguments.metric, arguments.title),
        *write_tables(curves, arguments.out, arguments.metric),
    ]
    print("\n".join(str(path) for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
