"""SIGTERM ends a command as Ctrl-C does: what it opened is closed, and it says so in one line."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


@dataclass
class Ending:
    """How a command that did not end by itself was ended.

    Attributes:
        signal: Number of the signal. It is noted here since what arrives from inside a call to Ray is
            a plain ``KeyboardInterrupt``.
    """

    signal: int = signal.SIGINT

    @property
    def exit_status(self) -> int:
        """Exit status of the command."""
        return 128 + self.signal


@contextmanager
def raised_signals(ending: Ending) -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` in the main thread while inside; ``rllib train`` has handlers of its own while
    trials run.

    Where an event loop runs there, asyncio has a handler for SIGINT, which cancels what the loop runs and raises a
    ``KeyboardInterrupt`` when all is closed. It gets this signal too: raised inside one of many coroutines it would
    leave errors that nobody asks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == own:
            ending.signal = number
            of_loop = signal.getsignal(signal.SIGINT)
            if callable(of_loop) and of_loop is not signal.default_int_handler:
                of_loop(signal.SIGINT, frame)
                return
            raise Terminated
        signal.signal(number, signal.SIG_DFL)  # A forked process ends as it would without this handler.
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
