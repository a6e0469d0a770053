"""A process (``python -m ...running NAME SETTING``) and a time limit for each check: a failing one affects no other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_lmgame.base.json_files import parse, write_json
from rllib_lmgame.base.text import in_words
from rllib_lmgame.experiments.acceptance.checks import LIMIT_S, Check, Here, Setting, named

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
MODULE = f"{__package__}.running"
LOG_TAIL = 4000
"""Characters of a failed check's output that are kept."""
FOUND = "found.json"


@dataclass(frozen=True)
class Outcome:
    """What became of a check.

    Attributes:
        why: It failed or was skipped; empty if it passed.
        measured: As :meth:`~.measured.Measured.as_dict`.
        log: The end of its output, if it failed.
    """

    check: str
    about: str
    form: str
    state: str
    why: str = ""
    seconds: float = 0.0
    measured: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""


def outcomes(checks: Sequence[Check], here: Here, model: str | None = None) -> Iterator[Outcome]:
    """Run one check after the other; each as soon as it is over."""
    with _directory() as shared:
        for check in checks:
            lacking = here.lacking(check)
            about = check.about if here.cards or not check.on_cpu else check.on_cpu
            if lacking:
                yield Outcome(check.name, about, here.form, SKIPPED, lacking)
                continue
            with _directory(shared) as directory:
                yield _outcome(check, about, here, Path(directory), model)


def _directory(within: str | None = None) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rllib-gpu-", dir=within, ignore_cleanup_errors=True)


def _outcome(check: Check, about: str, here: Here, directory: Path, model: str | None) -> Outcome:
    given = here.given(check) if here.cards else 0
    setting = {
        "gpus": given,
        "card_gib": here.smallest(check) if given else 0.0,
        "model": model,
        "directory": str(directory),
        "shared": str(directory.parent),
    }
    began = time.monotonic()
    why = run_apart(
        [sys.executable, "-m", MODULE, check.name, json.dumps(setting)],
        directory / "log",
        LIMIT_S[here.form],
        environment(here.ids[:given]),
    )
    seconds = time.monotonic() - began
    measured, error = read_found(directory / FOUND)
    if not why and not error:
        wrong = [each["name"] for each in measured if not each["ok"]]
        why = f"out of bounds: {', '.join(wrong)}" if wrong else "" if measured else "ended, and left nothing measured"
    why = error or why
    state, log = (FAILED, _tail(directory / "log")) if why else (PASSED, "")
    return Outcome(check.name, about, here.form, state, why, round(seconds, 1), measured, log)


def environment(ids: Sequence[str]) -> dict[str, str]:
    """Variables of a check's process: the cards it may use, and no cluster of others."""
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {**kept, "CUDA_VISIBLE_DEVICES": ",".join(ids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def run_apart(command: Sequence[str], log: Path, limit_s: float, variables: dict[str, str]) -> str:
    """Run a command as the leader of a session, which ends with it; returns why it did not end well, if so."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"did not end within {limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with {status}" if status else ""


def read_found(file: Path) -> tuple[list[dict[str, Any]], str]:
    """What a check's process wrote: measurements, and its error if it had one; nothing if it wrote nothing whole."""
    try:
        found = parse(file.read_bytes())
        return list(found["measured"]), str(found["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return [], ""


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4 * LOG_TAIL))
        return file.read().decode("utf-8", "replace")[-LOG_TAIL:]


def main(name: str, text: str) -> int:
    """Run a check and write what it measured; 1 if it could not be ended."""
    told = json.loads(text)
    setting = Setting(**told | {name: Path(told[name]) for name in ("directory", "shared")})
    error, measured = "", []
    try:
        (check,) = named([name])
        measured = [each.as_dict() for each in check(setting)]
    except Exception as raised:
        traceback.print_exc()
        error = in_words(raised)
    write_json(setting.directory / FOUND, {"measured": measured, "error": error})
    return 1 if error else 0


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Nothing that a check left behind is waited for.
