"""Signals that ask a command to end. Every command imports this at its start, so it imports nothing of the package."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals beside Ctrl-C that ask a command to end: SLURM and submitit may send SIGUSR1 before a job's time is up."""


def set_handlers(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handle signals, except those that are ignored; returns their handlers before.

    Ctrl-C is handled even if it is ignored, as it is in a shell's background jobs.
    """
    handled = [n for n in numbers if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in handled}


def leave_closed_output() -> None:
    """Discard what is printed from now on where nobody reads it any more, or printing would fail: SIGHUP takes the
    terminal, or ends `tee`.
    """
    for stream in (1, 2):
        state = select.poll()
        state.register(stream, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in state.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
