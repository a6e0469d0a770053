"""Python loads this when it starts: it writes down which functions of the package are called, in every process.

A file for each process lies in the directory that ``CALLS_DIR`` names; a line is a time, the file of a function and the
function, at most once in ``EVERY_S``. What runs while a module is imported is left out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType
from typing import IO, Any

EVERY_S = 0.05
PACKAGE = f"{os.sep}rllib_lmgame{os.sep}"


class Calls:
    """Writes down calls of this process."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._told: dict[Any, float] = {}
        self._pid = 0
        self._file: IO[str]

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        _, found, file = code.co_filename.rpartition(PACKAGE)
        now = time.monotonic()
        if not found or now < self._told.get(code, 0.0) + EVERY_S:
            return
        self._told[code] = now
        if code.co_name == "<module>" or is_import(frame):
            return
        if self._pid != os.getpid():  # Files are not shared with processes that were forked.
            self._pid = os.getpid()
            self._file = open(os.path.join(self._directory, str(self._pid)), "a", buffering=1)  # noqa: SIM115
        self._file.write(f"{now:.4f}\t{file}\t{code.co_qualname}\n")


def is_import(frame: FrameType | None) -> bool:
    """Whether somebody who imports a module waits for this call."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return False


if directory := os.environ.get("CALLS_DIR"):
    calls = Calls(directory)
    threading.settrace(calls)
    sys.settrace(calls)
