"""SIGTERM, SIGHUP and SIGUSR1 end a command as Ctrl-C does: what it opened is closed, and it says so in one line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rllib_lmgame.experiments.run.signals import ENDINGS, leave_closed_output, set_handlers


class Terminated(KeyboardInterrupt):
    """A signal asked the command to end."""


@dataclass
class Ending:
    """The ``signal`` that ended a command; Ray's calls turn it into a plain ``KeyboardInterrupt``, hence noted here."""

    signal: int = signal.SIGINT

    @property
    def exit_status(self) -> int:
        return 128 + self.signal


@contextmanager
def raised_signals(ending: Ending) -> Iterator[None]:
    """Inside, these signals raise :class:`Terminated` in the main thread; ``rllib train`` has its own handlers.

    In an event loop asyncio's handler for SIGINT gets it: that cancels everything and raises ``KeyboardInterrupt`` at
    the end. Raised inside one of many coroutines it would leave errors that nobody asks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        ending.signal = number
        leave_closed_output()
        of_loop = signal.getsignal(signal.SIGINT)
        if not callable(of_loop) or of_loop is signal.default_int_handler:
            raise Terminated
        of_loop(signal.SIGINT, frame)

    before = set_handlers(ENDINGS, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
