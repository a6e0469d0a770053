"""What came out of a run: where results and checkpoints are, and why a trial failed."""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.registry import REPORTS, check_arguments
from rllib_lmgame.base.storage import absolute
from rllib_lmgame.experiments.results.curves import RANKED_BY, bounds, figure_text, last_measured, numbers_of
from rllib_lmgame.experiments.results.files import RESULT_FILE, json_lines
from rllib_lmgame.experiments.spec import ExperimentSpec
from rllib_lmgame.inference.serving.interruption import InterruptedWaitError
from rllib_lmgame.inference.serving.oom import oom_line
from rllib_lmgame.telemetry.metrics import COLLAPSE
from rllib_lmgame.telemetry.trial_names import trial_names, trial_settings

_OF_RAY = "\x1b[36mray::"
"""How Ray begins the line that names the actor which raised an error."""

_DIED = re.compile(r"Failure # .*\nThe actor (?:died unexpectedly|\w+ is unavailable)(?:(?:.*\n)*?\tpid: (\d+))?")


@dataclass(frozen=True)
class TrialSummary:
    """One trial at its end.

    Attributes:
        path: Directory (or URI) of its results.
        checkpoint: Its newest, if any.
        config: Search spaces resolved.
        parameters: The values drawn from the search space, as they are now.
        error: Why it failed, in a few lines.
    """

    experiment: str
    trial_id: str
    path: str
    checkpoint: str | None
    last_result: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    finished: bool = True
    error: str | None = None


def experiment_directory(spec: ExperimentSpec) -> str:
    """Directory or URI of an experiment's results."""
    from ray.train.constants import DEFAULT_STORAGE_PATH

    path = spec.options.storage_path
    return f"{absolute(DEFAULT_STORAGE_PATH if path is None else path)}/{spec.name}"


def summary_of(experiment: str, trial: Any, interrupted: bool = False) -> TrialSummary:
    """The summary of Tune's trial; of an interrupted run one that did not come to its end is no failure."""
    checkpoint = trial.checkpoint
    to_restart = trial.status == "PENDING" and trial.error_file and is_misconfigured(trial)
    error = cause(trial) if trial.status == "ERROR" or to_restart else None
    given_up = interrupted and error is not None and InterruptedWaitError.__name__ in error
    return TrialSummary(
        experiment=experiment,
        trial_id=trial.trial_id,
        path=str(trial.path),
        checkpoint=str(checkpoint.path) if checkpoint is not None else None,
        last_result=dict(trial.last_result or {}),
        config=dict(trial.config or {}),
        parameters=trial_settings(trial),
        finished=trial.status == "TERMINATED" and (not interrupted or bool((trial.last_result or {}).get("done"))),
        error=None if given_up else error,
    )


def cause(trial: Any) -> str:
    """The last lines of a trial's error, which name what went wrong."""
    text = ""
    if trial.error_file and Path(trial.error_file).exists():
        text = Path(trial.error_file).read_text(encoding="utf-8", errors="replace")
    text = text[max(0, text.rfind("Failure # ")) :]
    if (line := oom_line(text)) is not None:
        return line
    if says_full_disk(text):
        return "a disk is full, the trial could not be saved; make room and go on with --resume"
    if died := _DIED.match(text):
        pid = f" (pid {died[1]})" if died[1] else ""
        why = "it was killed, it crashed, or its node was lost; --resume goes on from its newest checkpoint"
        return f"the trial's own process{pid} ended without an error: {why}"
    told_of = (" ", "Traceback", "Failure #", "The above exception", "During handling", _OF_RAY)
    causes = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith(told_of)]
    return "\n".join(causes[-3:]) or "the trial ended without a message"


def is_misconfigured(trial: Any) -> bool:
    """Whether a trial failed at its configuration or a missing package, as the next one would."""
    kinds = (ConfigError, MissingDependencyError)
    return cause(trial).splitlines()[-1].startswith(tuple(f"{kind.__module__}.{kind.__name__}:" for kind in kinds))


def reason(trial: Any) -> str:
    """Why a trial failed, in a line; without the class of this package's own errors."""
    last = cause(trial).splitlines()[-1]
    return last.partition(": ")[2] if last.startswith(f"{ConfigError.__module__}.") else last


def says_full_disk(error: object) -> bool:
    """Whether an error, or its text, says that nothing more can be written."""
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


def print_summary(summaries: Sequence[TrialSummary]) -> None:
    names = _names(summaries)
    for summary in summaries:
        iterations = summary.last_result.get("training_iteration", 0)
        state = "failed" if summary.error else "done" if summary.finished else "stopped"
        print(f"{summary.experiment} {names[summary.trial_id]}: {state} after {iterations} iterations")
        print(f"  results     {summary.path}")
        if summary.checkpoint:
            print(f"  checkpoint  {summary.checkpoint}")
        elif state == "stopped":
            print("  checkpoint  none yet; --resume begins it anew")
        if summary.finished and COLLAPSE in summary.last_result:
            print(f"  {summary.last_result[COLLAPSE]}")
        if summary.error:
            print("  " + summary.error.replace("\n", "\n  "), file=sys.stderr)
            print(f"  the whole trace stands in {summary.path}/error.txt", file=sys.stderr)


def print_ranking(spec: ExperimentSpec, summaries: Sequence[TrialSummary]) -> TrialSummary | None:
    """Print the trials of a sweep, best first; nothing for a single trial. Returns the best, if there is any."""
    if len(summaries) < 2:
        return next(iter(summaries), None)
    measured = {summary.trial_id: _measured(summary) for summary in summaries}
    metric, mode = ranked_by(spec, measured.values())
    values = {trial: numbers[metric] for trial, numbers in measured.items() if metric in numbers}
    figures = {trial: figure_text((values[trial], *bounds(measured[trial], metric))) for trial in values}
    sign = -1.0 if mode == "max" else 1.0
    best = sorted(summaries, key=lambda s: (s.trial_id not in values, sign * values.get(s.trial_id, 0.0)))
    print(f"{spec.name}, best first by {metric} ({mode}, last measured)")
    names = _names(summaries)
    for place, summary in enumerate(best, 1):
        figure = figures.get(summary.trial_id, "never measured")
        state = " (failed)" if summary.error else ""
        iterations = f"{summary.last_result.get('training_iteration', 0)} iterations"
        print(f"  {place:>3}. {figure:<20} {names[summary.trial_id]}, {iterations}{state}")
    return best[0]


def _names(summaries: Sequence[TrialSummary]) -> dict[str, str]:
    names: dict[str, str] = {}
    for experiment in {summary.experiment for summary in summaries}:
        own = {summary.trial_id: summary.parameters for summary in summaries if summary.experiment == experiment}
        names |= trial_names(own)
    return names


def ranked_by(spec: ExperimentSpec, measured: Iterable[Mapping[str, float]]) -> tuple[str, str]:
    """Metric and mode to compare trials by: the scheduler's, the kept checkpoints', or first of :data:`RANKED_BY`."""
    scheduler = spec.options.scheduler
    if isinstance(scheduler, Mapping) and isinstance(scheduler.get("metric"), str):
        return scheduler["metric"], str(scheduler.get("mode", "max"))
    kept = spec.options.checkpoint_config
    if kept.checkpoint_score_attribute is not None:
        return kept.checkpoint_score_attribute, kept.checkpoint_score_order
    names = {name for numbers in measured for name in numbers}
    return next((metric for metric in RANKED_BY if metric in names), RANKED_BY[-1]), "max"


def _measured(summary: TrialSummary) -> dict[str, float]:
    """The last number of each metric; of the last result alone where a trial's files cannot be read here."""
    results = json_lines(Path(summary.path) / RESULT_FILE)
    return last_measured(map(numbers_of, results)) or last_measured([numbers_of(summary.last_result)])


def load_report(setting: str | Mapping[str, Any]) -> Callable[[Sequence[TrialSummary]], None]:
    """The report function a setting names, with its arguments. Raises: ConfigError: no such function or argument."""
    name, arguments = REPORTS.split(setting)
    function = REPORTS.find(name)
    if not callable(function):
        raise ConfigError("report", f"{name} is not a function")
    return functools.partial(function, **check_arguments(function, arguments, "report", before=1))
