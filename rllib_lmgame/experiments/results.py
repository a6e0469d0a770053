"""What came out of a run: where results and checkpoints are, and why a trial failed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_lmgame.experiments.spec import ExperimentSpec


@dataclass(frozen=True)
class TrialSummary:
    """One trial at its end.

    Attributes:
        experiment: Name of its experiment.
        trial_id: Tune's id.
        path: Directory (or URI) of its results.
        checkpoint: Directory of its newest checkpoint, if it has one.
        last_result: Its last result.
        config: Its configuration, search spaces resolved.
        parameters: The values drawn from the search space.
        finished: Whether it came to its end.
        error: Why it failed, in a few lines; ``None`` if it did not.
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
    """Directory or URI that holds an experiment's trials."""
    return f"{storage_root(spec)}/{spec.name}"


def storage_root(spec: ExperimentSpec) -> str:
    """Storage path of an experiment, made absolute."""
    path = spec.options.storage_path
    if path is None:
        from ray.train.constants import DEFAULT_STORAGE_PATH

        path = DEFAULT_STORAGE_PATH
    return path.rstrip("/") if "://" in path else str(Path(path).expanduser().absolute())


def summarize(experiment: str, trials: Iterable[Any]) -> list[TrialSummary]:
    """Summaries of Tune's trials."""
    return [_summary(experiment, trial) for trial in trials]


def _summary(experiment: str, trial: Any) -> TrialSummary:
    checkpoint = trial.checkpoint
    return TrialSummary(
        experiment=experiment,
        trial_id=trial.trial_id,
        path=str(trial.path),
        checkpoint=str(checkpoint.path) if checkpoint is not None else None,
        last_result=dict(trial.last_result or {}),
        config=dict(trial.config or {}),
        parameters=dict(trial.evaluated_params or {}),
        finished=trial.status == "TERMINATED",
        error=_cause(trial) if trial.status == "ERROR" else None,
    )


def _cause(trial: Any) -> str:
    """The last lines of a trial's error, which name what went wrong."""
    text = ""
    if trial.error_file and Path(trial.error_file).exists():
        text = Path(trial.error_file).read_text(encoding="utf-8", errors="replace")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith((" ", "Traceback", "Failure #", "The above exception", "During handling"))]
    return "\n".join(causes[-3:]) or "the trial ended without a message"


def print_summary(summaries: Iterable[TrialSummary]) -> None:
    """Print, per trial, its state and where its results are."""
    for summary in summaries:
        iterations = summary.last_result.get("training_iteration", 0)
        chosen = "".join(f" {key}={value}" for key, value in summary.parameters.items())
        state = "failed" if summary.error else "done" if summary.finished else "stopped"
        print(f"{summary.experiment} {summary.trial_id}{chosen}: {state} after {iterations} iterations")
        print(f"  results     {summary.path}")
        if summary.checkpoint:
            print(f"  checkpoint  {summary.checkpoint}")
        if summary.error:
            print("  " + summary.error.replace("\n", "\n  "), file=sys.stderr)
            print(f"  the whole trace stands in {summary.path}/error.txt", file=sys.stderr)
