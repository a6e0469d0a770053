"""Learning curves of trials from the files of their results: reading them, and which are seeds of one run."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

from rllib_lmgame.algorithms.checkpoints.manifest import MILESTONES_FILE, REPORT_FILE
from rllib_lmgame.algorithms.checkpoints.paths import newest_checkpoint
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import read_mapping
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.experiments.results.files import ITERATION, RESULT_FILE, json_lines
from rllib_lmgame.measures.statistics import mean_interval, rate_over_levels
from rllib_lmgame.rollouts.episodes import seed_and_level
from rllib_lmgame.telemetry.metrics import OVER_LEVELS, flatten
from rllib_lmgame.telemetry.trial_names import settings_name

METRICS = (
    *("env_runners/success_rate", "env_runners/episode_return_mean"),
    *("evaluation/env_runners/success_rate", "evaluation/env_runners/episode_return_mean", "validation_loss"),
)
"""What curves are drawn of where nothing else is named: the first that all trials have."""
_OTHERS = (
    *("evaluation/exploitability", "evaluation/env_runners/seat_returns_mean/*", "env_runners/seat_returns_mean/*"),
    "learners/*/policy_loss",
)
SMOOTHING = 9
"""The most iterations of training that are averaged."""
RANKED_BY = (
    *("evaluation/env_runners/success_rate", "env_runners/success_rate"),
    *("evaluation/env_runners/episode_return_mean", "env_runners/episode_return_mean"),
)
"""What trials of a sweep are ranked by where nothing names a metric: the first that was measured."""
SETTINGS_FILE = "params.json"
"""Tune's, with a trial's configuration."""
EXPERIMENT_FILE = "settings.json"
"""An experiment's settings, among them ``run``, which no configuration has."""
_MOST_BYTES = 64 << 20
_MOST_KEYS = 4

Figure = tuple[float, float | None, float | None]
"""A number, and the bounds of its 95 % interval where there is one."""


@dataclass
class Curve:
    """One trial.

    Attributes:
        name: Of its directory.
        experiment: Of the directory above.
        iterations: PPO iterations (training iterations where the algorithm has no phases).
        values: The metric at each.
        intervals: Its 95 % interval at each, where one was measured.
        seconds: Wall time since the start of the trial at each.
        heldout: Milestone -> level and verdict of each held-out episode.
        settings: Its configuration without the seed and with ``algorithm``, empty where it is not known.
        seed: Of its configuration.
        last: The last number of each metric.
    """

    name: str
    experiment: str = ""
    iterations: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    intervals: list[tuple[float | None, float | None]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    heldout: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    seed: Any = None


def read_curves(directories: Sequence[Path], metric: str | None = None) -> tuple[list[Curve], str, list[str]]:
    """Read the curves of trials.

    Returns: The curves, their metric, and why trials without results or without the metric were left out. Without a
    name the metric is the first of :data:`METRICS` and losses that most trials have.

    Raises: ConfigError: there is no curve at all.
    """
    results: dict[Path, list[dict[str, float]]] = {}
    curves, errors = list[Curve](), list[ConfigError]()
    for directory in directories:
        try:
            results[directory] = read_results(directory)
        except ConfigError as error:
            errors.append(error)
    metric = _default_metric(list(results.values())) if metric is None else metric
    for directory, rows in results.items():
        try:
            curves.append(read_curve(directory, metric, rows))
        except ConfigError as error:
            errors.append(error)
    if not curves and errors:
        raise errors[0]
    return curves, metric, [f"left out: {error}" for error in errors]


def _default_metric(results: Sequence[Sequence[Mapping[str, float]]]) -> str:
    """The sum of returns that never changes, as in self-play of a zero-sum game, is no curve."""
    often = Counter(name for rows in results for name in set(_measured(rows)))
    returns = [name for name in METRICS if name.endswith("episode_return_mean")]
    seen = [(name, row[name]) for rows in results for row in rows for name in returns if name in row]
    constant = {name for name in returns if len({x for each, x in seen if each == name and not math.isnan(x)}) == 1}
    several = len({row.get(ITERATION) for rows in results for row in rows}) > 1
    found = [name for pattern in _OTHERS for name in sorted(often) if fnmatchcase(name, pattern)]
    names = [name for name in (*METRICS, *found) if not (several and name in constant)]
    return max(names, key=lambda name: often[name]) if any(often[name] for name in names) else METRICS[0]


def read_curve(directory: Path, metric: str, rows: Sequence[Mapping[str, float]] | None = None) -> Curve:
    """The curve of one trial; iterations of the warm start are left out.

    Raises: ConfigError: the trial has no results, or none with the metric.
    """
    rows = read_results(directory) if rows is None else rows
    place = directory.absolute()
    curve = Curve(place.name, place.parent.name, heldout=read_heldout(directory), last=last_measured(rows))
    if (file := directory / SETTINGS_FILE).is_file():
        curve.settings = dict(_read(file))
        curve.seed = curve.settings.pop("seed", None)
        if (file := place.parent / EXPERIMENT_FILE).is_file():
            curve.settings["algorithm"] = _read(file).get("run")
    for row in rows:
        value = row.get(metric)
        if row.get("phase", 1.0) != 1.0 or value is None or math.isnan(value):
            continue
        curve.iterations.append(row.get("rl_iteration", row.get(ITERATION, len(curve.iterations) + 1.0)))
        curve.values.append(value)
        curve.intervals.append(bounds(row, metric))
        curve.seconds.append(row.get("time_total_s", math.nan))
    if not curve.values:
        known = {key for key in _measured(rows) if re.search("success|return_mean|policy_loss|validation_loss", key)}
        there = f"there is {', '.join(sorted(known)) or 'no other'} (--metric names one)"
        raise ConfigError("", f"{directory}: no result has a number for {metric}; {there}")
    return curve


def _measured(rows: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for row in rows:
        if row.get("phase", 1.0) == 1.0:
            yield from (key for key, value in row.items() if not math.isnan(value))


def read_results(directory: Path) -> list[dict[str, float]]:
    """A trial's results, keys joined by ``/``; of a restarted trial the last result of each iteration counts.

    A line that is cut off ends them. Raises: ConfigError: there are none.
    """
    if not (directory / RESULT_FILE).is_file():
        raise ConfigError("", f"{directory}: holds no {RESULT_FILE}: it is no trial, or one without a result")
    rows = [numbers_of(result) for result in json_lines(directory / RESULT_FILE)]
    if not rows:
        raise ConfigError("", f"{directory}: its file of results has no whole line")
    last = {row.get(ITERATION, float(i)): row for i, row in enumerate(rows)}
    return [last[iteration] for iteration in sorted(last)]


def read_heldout(directory: Path) -> dict[str, list[tuple[str, float]]]:
    """Milestone -> level and success of each held-out episode, from ``report.json`` or the newest checkpoint's
    ``milestones.json``. Raises: ConfigError: the file is damaged.
    """
    saved = [*sorted(directory.glob(f"checkpoint_*/{MILESTONES_FILE}")), directory / REPORT_FILE]
    file = next((path for path in reversed(saved) if path.is_file()), None)
    if file is None:
        return {}
    content = _read(file)
    milestones = content.get("successes", {}) if file.name == REPORT_FILE else content
    try:
        found = {
            name: [(seed_and_level(seed)[1], float(success)) for seed, success in successes.items()]
            for name, successes in milestones.items()
            if successes
        }
        if not all(0.0 <= success <= 1.0 for verdicts in found.values() for _, success in verdicts):
            raise ValueError("a success is from 0 to 1")
        return found
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError("", f"{file} is damaged: {error}") from None


def success_over_levels(verdicts: Sequence[tuple[str, float]]) -> tuple[int, float, float, float]:
    """Levels, lower bound, success and upper bound; the bounds of a single level are 0 and 1."""
    rate = rate_over_levels([success for _, success in verdicts], [level for level, _ in verdicts])
    low, high = rate.interval or (0.0, 1.0)
    return rate.levels, low, rate.mean, high


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_mapping(file, _MOST_BYTES)
    except ValueError as error:
        raise ConfigError("", str(error)) from None


def trial_directories(paths: Iterable[Path]) -> list[Path]:
    """Trials named, and those of the experiments named; each once. Raises: ConfigError: no such directory."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise ConfigError("", f"{path}: no such directory")
        below = sorted(file.parent for file in path.glob(f"*/{RESULT_FILE}"))
        found += below if below and not (path / RESULT_FILE).is_file() else [path]
    return list({path.resolve(): path for path in found}.values())


def best_of_sweep(path: str) -> str:
    """The directory of the best trial of an experiment of several, which is said on standard error, by the first of
    :data:`RANKED_BY` that any has measured; else ``path``.
    """
    place = expanded(path)
    if not place.is_dir() or newest_checkpoint(place) is not None:
        return path
    last: dict[Path, dict[str, float]] = {}
    for trial in trial_directories([place]):
        if newest_checkpoint(trial) is not None:
            with suppress(ConfigError):
                last[trial] = last_measured(read_results(trial))
    metric = next((name for name in RANKED_BY if any(name in numbers for numbers in last.values())), None)
    if len(last) < 2 or metric is None:
        return path
    best = max((trial for trial in last if metric in last[trial]), key=lambda trial: last[trial][metric])
    said = f"the best of {len(last)} trials by {metric} ({last[best][metric]:.4g})"
    print(f"note: {path}: {best.name} is {said}", file=sys.stderr)
    return str(best)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Centred moving average; the window shrinks at the ends."""
    half = window // 2
    return [fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def window_of(metric: str, curves: Sequence[Curve]) -> int:
    """Over how many iterations a metric of training is averaged: :data:`SMOOTHING`, of short runs about a third.

    Evaluations stand for themselves.
    """
    shortest = min(len(curve.values) for curve in curves)
    return min(SMOOTHING, shortest // 3) | 1 if metric.startswith("env_runners/") else 1


def seeds_of_runs(curves: Sequence[Curve]) -> list[list[Curve]]:
    """The trials of each run: those that differ in the seed alone; settings that are not known are taken to be alike
    within one experiment.
    """
    runs: dict[str, list[Curve]] = {}
    for curve in curves:
        kind = json.dumps(curve.settings, sort_keys=True) if curve.settings else curve.experiment
        runs.setdefault(kind, []).append(curve)
    return list(runs.values())


def mean_curve(curves: Sequence[Curve], window: int = 1) -> tuple[list[float], list[Figure]]:
    """Mean over trials with its interval by Student's t, from where the last begins to where the first ends.

    Each is averaged over ``window`` iterations. Those measured at different iterations are interpolated linearly. The
    interval of one trial is the one that was measured.
    """
    import numpy as np

    begin = max(curve.iterations[0] for curve in curves)
    end = min(curve.iterations[-1] for curve in curves)
    at = sorted({i for curve in curves for i in curve.iterations if begin <= i <= end})
    each = [np.interp(at, curve.iterations, smoothed(curve.values, window)).tolist() for curve in curves]
    if len(curves) > 1:
        return at, [(float(mean), low, high) for mean, low, high in map(mean_interval, zip(*each, strict=True))]
    (curve,) = curves
    measured = dict(zip(curve.iterations, curve.intervals, strict=False)) if window == 1 else {}
    return at, [(value, *measured.get(i, (None, None))) for i, value in zip(at, each[0], strict=True)]


def within_range(metric: str, bound: float) -> float:
    """A bound of an interval, of rates from 0 to 1."""
    return min(1.0, max(0.0, bound)) if metric.endswith("_rate") else bound


def names_of_runs(runs: Sequence[Sequence[Curve]]) -> list[str]:
    """What runs are called: by their experiments, or by the settings in which they differ (``grpo``, ``lr=0.01``).

    Where these are not known, or more than :data:`_MOST_KEYS`, by a trial.
    """
    experiments = [run[0].experiment for run in runs]
    if len(set(experiments)) == len(runs):
        return experiments
    varied = differing({str(i): run[0].settings for i, run in enumerate(runs)})
    drawn = [{key: each[str(i)] for key, each in varied.items() if str(i) in each} for i in range(len(runs))]
    names = [settings_name(settings) if len(varied) <= _MOST_KEYS else "" for settings in drawn]
    if len(set(experiments)) > 1:
        names = [f"{experiment} {name}" if name else "" for experiment, name in zip(experiments, names, strict=True)]
    often = Counter(names)
    return [name if name and often[name] == 1 else run[0].name for name, run in zip(names, runs, strict=True)]


def differing(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Key -> run -> its value, of the keys in which runs differ; a run that does not set a key is left out."""
    flat = {name: {".".join(path): x for path, x in flatten(each)} for name, each in settings.items() if each}
    keys = sorted({key for each in flat.values() for key in each})
    values = {key: {name: each[key] for name, each in flat.items() if key in each} for key in keys}
    return {
        key: each
        for key, each in values.items()
        if len(each) < len(flat) or len({json.dumps(value, sort_keys=True) for value in each.values()}) > 1
    }


def bounds(numbers: Mapping[str, float], metric: str) -> tuple[float | None, float | None]:
    """Bounds of a metric in results, where they were measured."""
    above, _, last = metric.rpartition("/")
    names = OVER_LEVELS[1:] if last == "success_rate" else (f"{last}_low", f"{last}_high")
    low, high = (numbers.get(f"{above}/{name}") for name in names)
    return (low, high) if low is not None and high is not None else (None, None)


def figure_text(figure: Figure) -> str:
    """``0.512 (0.43 - 0.59)``."""
    value, low, high = figure
    return f"{value:.4g}" + ("" if low is None or high is None else f" ({low:.3g} - {high:.3g})")


def numbers_of(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one result, keys joined by ``/``."""
    numbers = {}
    for path, value in flatten({key: value for key, value in result.items() if key != "config"}):
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):  # A whole number beyond all floats.
                numbers["/".join(path)] = float(value)
    return numbers


def last_measured(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Metric -> its last number; NaN stands where an iteration did not measure it."""
    return {key: value for row in rows for key, value in row.items() if not math.isnan(value)}
