"""``--dry-run --measure``: how long a run takes here, from a few of its iterations."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rllib_lmgame.base.schedule import number_at
from rllib_lmgame.experiments.checks.check import CheckedExperiment, build_config
from rllib_lmgame.experiments.run.cluster import RunOptions, running_cluster
from rllib_lmgame.experiments.search.spaces import sample_points
from rllib_lmgame.experiments.spec import ExperimentSpec
from rllib_lmgame.telemetry.progress import duration, progress_line

ITERATIONS = 3
"""The first is not counted: engines and learners are warm after it."""


def print_measured(checked: Sequence[CheckedExperiment], options: RunOptions) -> None:
    """Run iterations of each experiment's first configuration, without its warm start, and print how long it takes."""
    with running_cluster(checked, options):
        for experiment in checked:
            print(f"# {experiment.spec.name}: {ITERATIONS} iterations are measured on this machine", flush=True)
            for line in _measured(experiment):
                print(f"#   {line}", flush=True)


def _measured(experiment: CheckedExperiment) -> Iterator[str]:
    values = dict(next(iter(sample_points(experiment.spec.config))))
    values.pop("warm_start", None)
    if every := values.get("evaluation_interval") or 0:
        values["evaluation_interval"] = 10**9  # It is measured by itself, and not among the iterations.
    evaluation_s, began = 0.0, time.monotonic()
    algorithm = build_config(experiment.algorithm, values).build_algo()
    try:
        yield f"processes are up in {time.monotonic() - began:.0f} s"
        results, ends = list[Mapping[str, Any]](), list[float]()
        while len(results) < ITERATIONS:
            result = algorithm.train()
            yield progress_line(result)
            if result["training_iteration"]:  # Iteration 0 only evaluates: `evaluation_config.at_start`.
                results.append(result)
                ends.append(time.monotonic())
        if every:
            algorithm.evaluate()
            evaluation_s = time.monotonic() - ends[-1]
            yield f"an evaluation, every {every} iterations, takes {evaluation_s:.1f} s"
    finally:
        algorithm.stop()
        shutil.rmtree(algorithm.logdir, ignore_errors=True)
    yield from measured_lines(experiment.spec, results, ends, evaluation_s / every if every else 0.0)


def measured_lines(
    spec: ExperimentSpec, results: Sequence[Mapping[str, Any]], ends: Sequence[float], evaluation_s: float
) -> list[str]:
    """What an iteration takes, and when each criterion that counts ends a trial.

    Args:
        results: Of iterations one after another.
        ends: When each ended, in seconds.
        evaluation_s: An evaluation's part of an iteration.
    """
    each_s = (ends[-1] - ends[0]) / (len(ends) - 1) + evaluation_s
    lines = [f"an iteration takes {each_s:.1f} s, with its part of evaluations"]
    for key, goal in spec.options.stop.items():
        first, last = (number_at(result, key) for result in (results[0], results[-1]))
        if first is not None and last is not None and last > first and not key.endswith(("_mean", "_rate")):
            iterations = goal * (len(ends) - 1) / (last - first)
            lines.append(f"stop.{key}: {goal:g} is reached after about {duration(iterations * each_s)} in all")
    if spec.options.time_budget_s is not None:
        lines.append(f"time_budget_s ends it after {duration(spec.options.time_budget_s)}")
    if "warm_start" in spec.config:
        lines.append("a warm start comes first, which is not measured; replies and episodes often get shorter by it")
    return lines
