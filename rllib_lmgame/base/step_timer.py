"""A call into a game that waits for its turn at something shared stops the clock that limits it.

A game says ``with waiting(): ...`` around a wait that has a limit of its own. Whoever limits the call hands its thread
a :class:`StepClock`; without one nothing happens.
"""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

CALL_LIMIT_S = 60.0
"""Time limit of one call into a game."""
CHECK_LIMIT_S = 900.0
"""Of all checks of a game together."""


class WaitedTooLong(RuntimeError):
    """Something that a game needs was not free in time; neither the player nor the game is at fault."""


class StepClock(Protocol):
    """Limits a call into a game."""

    def pause(self) -> None:
        """The call begins to wait."""

    def resume(self) -> None:
        """The call works again."""

    def left(self) -> float:
        """Seconds until the call is given up, if it does not wait."""


_of_thread = threading.local()


@contextmanager
def waiting() -> Iterator[None]:
    """Around a wait: the clock of the calling thread's game stands still. Waits within waits count once."""
    clock: StepClock | None = getattr(_of_thread, "clock", None)
    if clock is None:
        yield
        return
    _of_thread.clock = None
    clock.pause()
    try:
        yield
    finally:
        clock.resume()
        _of_thread.clock = clock


def time_left() -> float | None:
    """Seconds until the call of this thread into a game is given up; ``None`` if nobody limits it."""
    clock: StepClock | None = getattr(_of_thread, "clock", None)
    return None if clock is None else max(0.0, clock.left())


def ready_pipes(readers: Iterable[T], writers: Iterable[T], seconds: float) -> tuple[list[T], list[T]]:
    """Those that can be read and those that can be written, after a wait of so many seconds at most.

    As ``select.select``, which takes no descriptor from 1024 on: a process that plays many games at once has more.
    """
    with selectors.DefaultSelector() as chosen:
        for pipe in readers:
            chosen.register(pipe, selectors.EVENT_READ)  # type: ignore[arg-type]
        for pipe in writers:
            chosen.register(pipe, selectors.EVENT_WRITE)  # type: ignore[arg-type]
        found = chosen.select(seconds)
    return tuple(  # type: ignore[return-value]
        [key.fileobj for key, events in found if events & wanted]
        for wanted in (selectors.EVENT_READ, selectors.EVENT_WRITE)
    )


def clocked(clock: StepClock, function: Callable[..., T], *args: Any) -> T:
    _of_thread.clock = clock
    try:
        return function(*args)
    finally:
        _of_thread.clock = None
