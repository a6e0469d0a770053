"""Checks a game in a process of its own, so that one that hangs is ended and the call it hangs in is named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.base.step_timer import CALL_LIMIT_S, CHECK_LIMIT_S
from rllib_lmgame.envs.checking import checker
from rllib_lmgame.envs.checking.checker import Calls, Report

_CODE = "import sys; from rllib_lmgame.envs.checking.apart import main; main(*sys.argv[1:])"
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


def check_apart(
    game: str,
    env_config: Mapping[str, Any] | None = None,
    call_limit_s: float = CALL_LIMIT_S,
    limit_s: float = CHECK_LIMIT_S,
) -> Report:
    """What :func:`~rllib_lmgame.envs.checking.checker.inspect_game` says, within a time limit.

    Args:
        game: Id or import path.
        env_config: Options to check it with.
        call_limit_s: Seconds one call into the game may take.
        limit_s: Seconds all checks may take.
    """
    with contextlib.ExitStack() as stack:
        report, trace = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        words = [game, json.dumps(dict(env_config or {})), str(call_limit_s), str(report.fileno()), str(trace.fileno())]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        files = [report.fileno(), trace.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, *words],
            env=env,
            pass_fds=files,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
        stack.callback(_end, process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        for file in (report, trace):
            file.seek(0)
        text, (call, _, frames) = report.read(), trace.read().decode(errors="replace").partition("\n")
        if process.returncode is None:
            last = f", the last call was {call}" if call else ""
            problem = f"the checks did not end within {limit_s:g} s{last}; it was stopped"
        elif text:
            return Report(*map(tuple, json.loads(text)))
        elif frames:
            problem = f"{call} did not come back within {call_limit_s:g} s{_place(frames)}; it was stopped"
        else:
            ending = f"exit status {process.returncode}" + (f" during {call}" if call else "")
            problem = f"its process ended with {ending}; a game must not end the process it is played in"
        return Report((f"{game}: {problem}",))


def _place(trace: str) -> str:
    """The innermost line of Python that is not of the standard library, in the words of ``faulthandler``."""
    library = sysconfig.get_paths()["stdlib"]
    for file, line, function in _FRAME.findall(trace.rpartition("most recent call first")[2]):
        if not file.startswith((library, "<")):
            return f" (at {Path(file).name}, line {line}, in {function})"
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(game: str, env_config: str, call_limit_s: str, report: str, trace: str) -> None:
    """The process that plays: writes what it finds, or, if a call does not come back, where it is."""
    checker.calls = Calls(int(trace), float(call_limit_s))
    found = checker.inspect_game(game, json.loads(env_config))
    with os.fdopen(int(report), "w") as file:
        json.dump([found.problems, found.warnings], file)
    sys.stderr.flush()
    os._exit(0)  # threads that a game left behind are not waited for
