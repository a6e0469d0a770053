"""Learning curves as a figure (PNG), and the numbers behind it (CSV)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rllib_lmgame.errors import MissingDependencyError
from rllib_lmgame.experiments.results.curves import (
    Curve,
    mean_curve,
    names_of_runs,
    seeds_of_runs,
    smoothed,
    success_over_levels,
)


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
        for number, (name, run) in enumerate(zip(names_of_runs(runs), runs, strict=True)):
            _draw_run(axes, run, f"C{number}", name if len(runs) > 1 else "", metric.startswith("env_runners/"))
        axes.set_xlabel("PPO iteration")
        axes.set_ylabel(metric.split("/")[-1].replace("_", " "))
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
        "after training": (last, "tab:green"),
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
