"""A script in a process of its own that is asked one thing at a time, each question and answer a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

END_S = 60.0
"""After so many seconds a process that does not end is killed."""

_MARK = "the answer is: "
"""In front of an answer; what libraries print there is passed over."""


class AskedProcess:
    """A script called with these arguments. Making one waits until the script is :func:`ready`.

    Raises: RuntimeError: The process ended before it answered; with the last lines of its errors.
    """

    def __init__(self, script: str | Path, *arguments: str, environment: Mapping[str, str]) -> None:
        self._script, pipe = script, subprocess.PIPE
        command = [sys.executable, str(script), *arguments]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=os.environ | environment, stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )
        self._answer()

    def ask(self, question: Any) -> Any:
        """What the script answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """There are no more questions; waits for the end of the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                return json.loads(line[len(_MARK) :])
        code = self._process.wait()
        self._errors.seek(0)
        last = "\n".join(self._errors.read().decode(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"{self._script} ended with {code}:\n{last}")


def ready() -> None:
    """The script can be asked."""
    answer(None)


def questions() -> Iterator[Any]:
    """What is asked, one at a time."""
    yield from map(json.loads, sys.stdin)


def answer(value: Any) -> None:
    """Answer the last question."""
    print(f"\n{_MARK}{json.dumps(value)}", flush=True)
