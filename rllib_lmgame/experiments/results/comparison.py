"""Runs beside each other: final figures with intervals, keys in which they differ, curves (PNG) and tables (CSV)."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import IO, Any

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.text import columns, first_line, shown
from rllib_lmgame.experiments.results.curves import (
    RANKED_BY,
    Curve,
    Figure,
    bounds,
    differing,
    figure_text,
    mean_curve,
    names_of_runs,
    read_curves,
    seeds_of_runs,
    success_over_levels,
    window_of,
    within_range,
)
from rllib_lmgame.measures.statistics import mean_interval
from rllib_lmgame.telemetry.metrics import RLLIB_EVALUATION

_MOST_SHOWN = 60
COMPARED = "comparison"
"""Name of the figure in a sweep's directory."""


def compare(curves: Sequence[Curve], metric: str) -> dict[str, Any]:
    """What is said of runs, the seeds of each taken together: ``runs`` and ``differing``, as JSON can hold it.

    A run has its ``name``, ``trials`` and their ``seeds``, the last ``iteration``, over how many the metric is
    ``averaged``, and ``figures``: metric or milestone -> value, low and high. Of several seeds these are mean and
    Student's t over seeds, of one what the evaluation itself tells.
    """
    runs = seeds_of_runs(curves)
    names, others, window = names_of_runs(runs), _measured(curves, metric), window_of(metric, curves)
    told = [
        {
            "name": name,
            "trials": [curve.name for curve in run],
            "seeds": [curve.seed for curve in run],
            "iteration": max(curve.iterations[-1] for curve in run),
            "averaged": window,
            "figures": _figures(run, metric, others, window),
        }
        for name, run in zip(names, runs, strict=True)
    ]
    settings = {name: run[0].settings for name, run in zip(names, runs, strict=True)}
    return {"metric": metric, "runs": told, "differing": differing(settings)}


def _measured(curves: Sequence[Curve], metric: str) -> list[str]:
    """Metrics to show beside that of the curves: success while training and in evaluations, or else the return, and
    what else evaluations measured.
    """
    found = {name for curve in curves for name in curve.last} - {metric}
    shown = [name for name in RANKED_BY if name in found]
    if any(name.endswith("success_rate") for name in shown):
        shown = [name for name in shown if name.endswith("success_rate")]
    own = [name.split("/") for name in sorted(found) if re.match(r"evaluation/(?!.*_(low|high)$)", name)]
    return shown + ["/".join(path) for path in own if path[1] not in ("env_runners", *RLLIB_EVALUATION)]


def _figures(run: Sequence[Curve], metric: str, others: Sequence[str], window: int) -> dict[str, Figure]:
    values = {metric: [fmean(curve.values[-window:]) for curve in run]}
    values |= {name: [curve.last[name] for curve in run if name in curve.last] for name in others}
    found = {name: _over_seeds(name, each) for name, each in values.items() if each}
    for name in [name for name in found if len(run) == 1 and name != metric]:
        found[name] = (found[name][0], *bounds(run[0].last, name))
    for milestone in dict.fromkeys(name for curve in run for name in curve.heldout):
        verdicts = [verdict for curve in run for verdict in curve.heldout.get(milestone, [])]
        _, low, rate, high = success_over_levels(verdicts)
        found[f"held out {milestone}"] = (rate, low, high)
    return found


def _over_seeds(name: str, values: Sequence[float]) -> Figure:
    mean, low, high = mean_interval(values)
    if not math.isfinite(low):
        return mean, None, None
    return mean, within_range(name, low), within_range(name, high)


def comparison_lines(said: Mapping[str, Any]) -> list[str]:
    """The text of :func:`compare`: a row for each run, and one for each key that differs."""
    runs = said["runs"]
    names = list(dict.fromkeys(name for run in runs for name in run["figures"]))
    rows = [["run", "seeds", "iterations", *names]]
    for run in runs:
        figures = [figure_text(run["figures"][name]) if name in run["figures"] else "" for name in names]
        rows.append([run["name"], _seeds(run["seeds"]), f"{run['iteration']:g}", *figures])
    lines = columns(rows, left=1)
    most = max(run["averaged"] for run in runs)
    over = "last measured" if most == 1 else f"mean of the last {most} iterations"
    lines.append(f"{said['metric']}: {over}; others: last measured; intervals: 95 %")
    if said["differing"]:
        rows = [["key", *(run["name"] for run in runs)]]
        for key, values in said["differing"].items():
            rows.append([key, *(shown(values[n], _MOST_SHOWN) if n in values else "" for n in rows[0][1:])])
        lines += ["", *columns(rows, left=len(rows[0]))]
    return lines


def _seeds(seeds: Sequence[Any]) -> str:
    return str(len(seeds)) if None in seeds else ", ".join(map(str, sorted(seeds)))


def print_comparison(directory: Path, trials: Sequence[Path]) -> None:
    """At the end of a sweep: the runs that have several seeds beside each other, and the curves of all as a figure."""
    try:
        curves, metric, left_out = read_curves(trials)
        for line in left_out:
            print(f"note: {line}", file=sys.stderr)
        said = compare(curves, metric)
        if len(said["runs"]) < len(curves):
            print("\n".join(comparison_lines({**said, "differing": {}})))
        print(f"  curves      {draw(curves, directory / COMPARED, metric, directory.name)}")
    except (ConfigError, MissingDependencyError, OSError) as error:
        print(f"note: no comparison of the trials: {first_line(error)}", file=sys.stderr)


_FEW = 20
"""Points of a curve that has a mark at each."""


def write_tables(curves: Sequence[Curve], out: Path, metric: str) -> list[Path]:
    """Write the CSV files; returns their paths. Each row has the run, the seed, the trial's directory, and the settings
    in which the runs differ. Trials of several experiments are named ``EXPERIMENT/TRIAL``.
    """
    import pandas as pd

    several = len({curve.experiment for curve in curves}) > 1
    runs = seeds_of_runs(curves)
    varied = differing({str(i): run[0].settings for i, run in enumerate(runs)})
    points, heldout = list[dict[str, Any]](), list[dict[str, Any]]()
    for i, (name, run) in enumerate(zip(names_of_runs(runs), runs, strict=True)):
        for curve in run:
            trial = f"{curve.experiment}/{curve.name}" if several else curve.name
            head = {"run": name, "seed": curve.seed, "trial": trial}
            head |= {key: each.get(str(i), "") for key, each in varied.items()}
            for iteration, seconds, value in zip(curve.iterations, curve.seconds, curve.values, strict=True):
                points.append({**head, "iteration": int(iteration), "time_s": round(seconds, 1), metric: value})
            for milestone, verdicts in curve.heldout.items():
                levels, low, rate, high = success_over_levels(verdicts)
                found = {"milestone": milestone, "levels": levels, "success": rate, "low": low, "high": high}
                heldout.append(head | found)
    tables = {out.with_name(out.name + ".csv"): points}
    if heldout:
        tables[out.with_name(out.name + "-heldout.csv")] = heldout
    for path, rows in tables.items():
        pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g")
    return list(tables)


def draw(curves: Sequence[Curve], out: Path, metric: str, title: str) -> Path:
    """Draw the figure: every trial faintly, the mean of each run with its 95 % interval as a band, held-out levels as
    points with 95 % intervals. The axis says over how many iterations lines are averaged (:func:`~.curves.window_of`).
    Runs are named as :func:`~.curves.names_of_runs` does.
    """
    path = out.with_name(out.name + ".png")
    window = window_of(metric, curves)
    with figure(path) as axes:
        runs = seeds_of_runs(curves)
        for number, (name, run) in enumerate(zip(names_of_runs(runs), runs, strict=True)):
            _draw_run(axes, run, f"C{number}", name if len(runs) > 1 else "", window)
        shown = axes.get_ylim()
        for number, run in enumerate(runs):
            _draw_band(axes, run, f"C{number}", window, metric)
        if not metric.endswith("_rate"):  # Bands of two seeds may be far wider than all curves together.
            axes.set_ylim(shown)
        axes.set_xlabel("iteration")
        axes.xaxis.get_major_locator().set_params(integer=True)
        what = metric.split("/")[-1].replace("_", " ")
        levels = {"env_runners": " on training levels", "evaluation": " in evaluations"}.get(metric.split("/")[0], "")
        axes.set_ylabel(f"{what}{levels}" + (f",\nmean of {window} iterations" if window > 1 else ""))
        axes.set_title(title)
    return path


@contextmanager
def figure(path: Path | IO[bytes]) -> Iterator[Any]:
    """Axes to draw on; the figure is written at the end, as PNG. Raises: MissingDependencyError: without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("figures need matplotlib: pip install 'rllib-lmgame[plots]'") from None

    drawn = Figure(figsize=(7.2, 4.2), dpi=140)  # Without pyplot, which knows of windows and takes a second.
    axes = drawn.subplots()
    yield axes
    axes.grid(alpha=0.3)
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label]
    if axes.get_legend_handles_labels()[0]:
        texts += axes.legend(loc="best", fontsize=8).get_texts()
    for text in texts:
        text.set_parse_math(False)  # Names are users': `$$` is no formula.
    drawn.tight_layout()
    drawn.savefig(path, format="png", metadata={"Software": None})


def _draw_run(axes: Any, curves: Sequence[Curve], colour: str, name: str, window: int) -> None:
    for curve in curves:
        axes.plot(curve.iterations, curve.values, color=colour, alpha=0.25, linewidth=1, **_marks(curve.values, 3))
    iterations, means = mean_curve(curves, window)
    seeds = f"mean of {len(curves)} seeds" if len(curves) > 1 else ""
    interval = "95 % interval" if any(low is not None for _, low, _ in means) else ""
    label = ", ".join(filter(None, (name, seeds, interval)))
    values = [mean for mean, _, _ in means]
    axes.plot(iterations, values, color=colour, linewidth=2, **_marks(values, 5), label=label)
    _draw_heldout(axes, curves, f"{name}, " if name else "", colour if name else None)


def _draw_band(axes: Any, curves: Sequence[Curve], colour: str, window: int, metric: str) -> None:
    iterations, means = mean_curve(curves, window)
    spread = [(i, low, high) for i, (_, low, high) in zip(iterations, means, strict=True) if low is not None]
    if spread:
        at, low, high = zip(*spread, strict=True)
        bounds = [[within_range(metric, bound) for bound in each] for each in (low, high)]
        axes.fill_between(at, *bounds, color=colour, alpha=0.15, linewidth=0)


def _marks(values: Sequence[float], size: int) -> dict[str, Any]:
    return {"marker": "o", "markersize": size} if len(values) <= _FEW else {}


def _draw_heldout(axes: Any, curves: Sequence[Curve], name: str, colour_of_run: str | None) -> None:
    last = max(curve.iterations[-1] for curve in curves)
    for milestone, place, colour in (
        ("before warm start", 0.0, "tab:gray"),
        ("after warm start", 0.0, "tab:orange"),
        ("after training", last, "tab:green"),
    ):
        verdicts = [verdict for curve in curves for verdict in curve.heldout.get(milestone, [])]
        if verdicts:
            _, low, rate, high = success_over_levels(verdicts)
            style = {"fmt": "o", "capsize": 4, "color": colour_of_run or colour}
            spread = [[max(0.0, rate - low)], [max(0.0, high - rate)]]
            label = f"{name}held-out levels {milestone}: {rate:.3f}"
            axes.errorbar([place], [rate], yerr=spread, label=label, **style)
