"""Runs beside each other: their final figures with intervals, and the keys in which they differ."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.text import columns, first_line, shown
from rllib_lmgame.experiments.results.curves import (
    RANKED_BY,
    Curve,
    Figure,
    bounds,
    differing,
    figure_text,
    names_of_runs,
    read_curves,
    seeds_of_runs,
    success_over_levels,
    window_of,
    within_range,
)
from rllib_lmgame.experiments.results.figures import draw
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
    told = {
        name: {
            "name": name,
            "trials": [curve.name for curve in run],
            "seeds": [curve.seed for curve in run],
            "iteration": max(curve.iterations[-1] for curve in run),
            "averaged": window,
            "figures": _figures(run, metric, others, window),
        }
        for name, run in zip(names, runs, strict=True)
    }
    settings = dict(zip(names, (run[0].settings for run in runs), strict=True))
    return {"metric": metric, "runs": list(told.values()), "differing": differing(settings)}


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
    head = ["run", "seeds", "iterations", *names]
    rows = [
        [
            run["name"],
            _seeds(run["seeds"]),
            f"{run['iteration']:g}",
            *(figure_text(run["figures"][name]) if name in run["figures"] else "" for name in names),
        ]
        for run in runs
    ]
    lines = columns([head, *rows], left=1)
    most = max(run["averaged"] for run in runs)
    over = "last measured" if most == 1 else f"mean of the last {most} iterations"
    lines.append(f"{said['metric']}: {over}; others: last measured; intervals: 95 %")
    if said["differing"]:
        head = ["key", *(run["name"] for run in runs)]
        rows = [
            [key, *(shown(values[run["name"]], _MOST_SHOWN) if run["name"] in values else "" for run in runs)]
            for key, values in said["differing"].items()
        ]
        lines += ["", *columns([head, *rows], left=len(head))]
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
