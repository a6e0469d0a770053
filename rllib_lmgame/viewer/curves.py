"""Curves of runs, for above the list of their episodes; results are read as they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rllib_lmgame.base.json_files import parse
from rllib_lmgame.experiments.results.curves import numbers_of
from rllib_lmgame.experiments.results.files import RESULT_FILE
from rllib_lmgame.telemetry.trial_names import directory_names

SHOWN = (
    "env_runners/success_rate",
    "env_runners/episode_return_mean",
    "env_runners/seat_returns_mean/*/*",
    "evaluation/env_runners/success_rate",
    "env_runners/format_error_rate",
    "env_runners/tokens_per_turn",
    "learners/*/entropy",
    "learners/*/logprob_diff_mean",
    "learners/*/advantage_mean",
    "learners/*/mean_kl_loss",
)
MOST_POINTS = 400
_MOST_FIGURES = 24


@dataclass
class Curves:
    """The numbers of trials that :data:`SHOWN` names, by the iteration that their episodes are of."""

    trials: Sequence[Path]
    changed: int = 0
    """How often there was something new."""
    _read: dict[Path, int] = field(default_factory=dict)
    _points: dict[Path, dict[float, dict[str, float]]] = field(default_factory=dict)

    def refresh(self) -> None:
        """Read what is new; a file that became shorter is read again. A line that is no result is passed over."""
        for trial in self.trials:
            path = trial / RESULT_FILE
            try:
                self._refresh(trial, path)
            except OSError:
                continue

    def _refresh(self, trial: Path, path: Path) -> None:
        size, start = path.stat().st_size, self._read.get(trial, 0)
        if size < start:
            start = 0
            self._points.pop(trial, None)
        if size == start:
            return
        points = self._points.setdefault(trial, {})
        with path.open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                start += len(line)
                try:
                    numbers = {name: value for name, value in numbers_of(parse(line)).items() if math.isfinite(value)}
                except (ValueError, AttributeError):
                    continue
                at = numbers.get("rl_iteration") or numbers.get("training_iteration", float(len(points) + 1))
                kept = {
                    name: value for name, value in numbers.items() if any(fnmatchcase(name, shown) for shown in SHOWN)
                }
                points[at] = points.get(at, {}) | kept
        if start != self._read.get(trial):
            self._read[trial] = start
            self.changed += 1

    def figures(self) -> list[dict[str, Any]]:
        """Per metric its ``name`` and ``lines``: of each trial that has it ``trial``, ``x`` and ``y``."""
        names = {name: None for points in self._points.values() for row in points.values() for name in row}
        order = sorted(names, key=lambda name: next(i for i, pattern in enumerate(SHOWN) if fnmatchcase(name, pattern)))
        return [{"name": name, "lines": self._lines(name)} for name in order[:_MOST_FIGURES]]

    def _lines(self, name: str) -> list[dict[str, Any]]:
        lines = []
        called = directory_names(trial.name for trial in self._points)
        for trial, points in self._points.items():
            found = [(at, row[name]) for at, row in sorted(points.items()) if name in row]
            step = -(-len(found) // MOST_POINTS) if found else 1
            kept = found[::-1][::step][::-1]
            if kept:
                lines.append({"trial": called[trial.name], "x": [at for at, _ in kept], "y": [y for _, y in kept]})
        return lines
