"""Checks a game in a process of its own, so that one that hangs is ended and the call it hangs in is named."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from rllib_lmgame.base.step_timer import CALL_LIMIT_S, CHECK_LIMIT_S
from rllib_lmgame.envs.checking import checker
from rllib_lmgame.envs.checking.checker import Report
from rllib_lmgame.envs.checking.watched_calls import CallBoard

POLL_S = 0.02
DUMP_S = 2.0
"""Seconds a process has to tell where it hangs."""
_CODE = "import sys; from rllib_lmgame.envs.checking.apart import main; main(*sys.argv[1:])"
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


def check_apart(
    game: str,
    env_config: Mapping[str, Any] | None = None,
    call_limit_s: float = CALL_LIMIT_S,
    limit_s: float = CHECK_LIMIT_S,
    progress: Callable[[int, int], Any] | None = None,
) -> Report:
    """What :func:`~rllib_lmgame.envs.checking.checker.inspect_game` says, within a time limit.

    Args:
        game: Id or import path.
        env_config: Options to check it with.
        call_limit_s: Seconds one call into the game may take.
        limit_s: Seconds all checks may take.
        progress: Called again and again with how many checks are over, and of how many.
    """
    with contextlib.ExitStack() as stack:
        board_file, report, trace = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        board_file.truncate(CallBoard.SIZE)
        board = CallBoard(board_file.fileno())
        files = [file.fileno() for file in (board_file, report, trace)]
        command = [sys.executable, "-c", _CODE, game, json.dumps(dict(env_config or {})), *map(str, files)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            command, env=env, pass_fds=files, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
        )
        stack.callback(_end, process)
        stopped = _watch(process, board, call_limit_s, limit_s, progress or (lambda over, of: None))
        if stopped:
            place = _where(process, trace)
            return Report((f"{game}: {stopped}{f' ({place})' if place else ''}; it was stopped",))
        report.seek(0)
        text = report.read()
        if not text:
            call = board.now()[0]
            ending = f"exit status {process.returncode}" + (f" during {call}" if call else "")
            return Report(
                (f"{game}: its process ended with {ending}; a game must not end the process it is played in",)
            )
        return Report(*map(tuple, json.loads(text)))


def _watch(
    process: subprocess.Popen[bytes],
    board: CallBoard,
    call_limit_s: float,
    limit_s: float,
    progress: Callable[[int, int], Any],
) -> str:
    """Wait for the end; returns what took too long, if anything did."""
    deadline = time.monotonic() + limit_s
    while process.poll() is None:
        progress(*board.told())
        call, since = board.now()
        now = time.monotonic()
        if call and now - since > call_limit_s:
            return f"{call} did not come back within {call_limit_s:g} s"
        if now > deadline:
            return f"the checks did not end within {limit_s:g} s" + (f", the last call was {call}" if call else "")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    return ""


def _where(process: subprocess.Popen[bytes], trace: IO[bytes]) -> str:
    """The innermost line of Python that is not of the standard library, as the process tells it when it is asked."""
    process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + DUMP_S
    library = sysconfig.get_paths()["stdlib"]
    while time.monotonic() < deadline:
        trace.seek(0)
        frames = _FRAME.findall(trace.read().decode(errors="replace").rpartition("most recent call first")[2])
        own = [frame for frame in frames if not frame[0].startswith(library) and not frame[0].startswith("<")]
        if own:
            file, line, function = own[0]
            return f"at {Path(file).name}, line {line}, in {function}"
        time.sleep(POLL_S)
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(game: str, env_config: str, board: str, report: str, trace: str) -> None:
    """The process that plays: writes what it finds, and, when it is asked, where it is."""
    faulthandler.register(signal.SIGUSR1, file=int(trace), all_threads=False)
    checker.board = CallBoard(int(board))
    found = checker.inspect_game(game, json.loads(env_config))
    with os.fdopen(int(report), "w") as file:
        json.dump([found.problems, found.warnings], file)
    sys.stderr.flush()
    os._exit(0)  # threads that a game left behind are not waited for
