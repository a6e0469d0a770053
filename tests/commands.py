"""``rllib`` in a process of its own, which leads a session; whatever it starts carries a mark in its environment."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
import uuid

import psutil

MARK = "LMGAME_TEST_RUN"
PATIENCE_S = 280


class Command:
    """One run of ``rllib`` with the words of a line."""

    def __init__(self, line: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rllib_lmgame.cli", *shlex.split(line)],
            env={**os.environ, MARK: self.mark, "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def wait_for(self, pattern: str) -> None:
        """Read until a line holds ``pattern``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"ended without {pattern!r}:\n{self.text}")

    def finish(self, *statuses: int) -> str:
        """Read the rest; returns the text. It ends with one of ``statuses``, or 0, and leaves nothing behind."""
        self.text += self.process.communicate(timeout=PATIENCE_S)[0]
        assert self.process.returncode in (statuses or (0,)), self.text
        deadline = time.monotonic() + PATIENCE_S
        while self.processes() and time.monotonic() < deadline:  # Ray's own end a moment after their parent.
            time.sleep(0.3)
        assert not self.processes()
        return self.text

    def processes(self) -> dict[psutil.Process, str]:
        """Living processes with the mark, and their command lines."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found[process] = " ".join(process.cmdline())[:120]
        return found

    def end(self) -> None:
        """End whatever is left."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
