"""Ends a run whose cluster has lost its head, or this machine.

Without the head nothing can be started, saved or stopped. Ray's own processes notice only after minutes, and never if
the head is stopped but not dead. So the driver asks the head now and then whether this machine's node is alive.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rllib_lmgame.algorithms.cluster.ray_cluster import answers, kill_own_processes, node_is_alive

KNOCK_S = 5.0
"""Between two knocks at the head."""

PATIENCE_S = 30.0
"""Without an answer for that long the head counts as dead; one that restarts in time continues the run."""

EXIT_LOST = 1


class Silence:
    """How long nobody has answered; longer than ``patience_s`` is too long."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: float | None = None

    def too_long(self, answered: bool, now: float) -> bool:
        """Take note of one knock; whether the silence has lasted too long by ``now`` (seconds of any clock)."""
        if answered:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self._patience_s


@contextmanager
def watched_head(address: str, end: Callable[[str], None] | None = None) -> Iterator[None]:
    """Watch the head at ``address`` (``host:port``) while inside; if it is lost, call ``end``, by default to exit."""
    stopped = threading.Event()
    thread = threading.Thread(target=_watch, args=(address, stopped, end or _end), name="lmgame-head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()


def _watch(address: str, stopped: threading.Event, end: Callable[[str], None]) -> None:
    silence = Silence(PATIENCE_S)
    while not stopped.wait(KNOCK_S):
        alive = node_is_alive(PATIENCE_S) if answers(address) else None
        lost = ""
        if alive is False:
            lost = f"this machine's part of the Ray cluster at {address} has died, or does not answer"
        elif silence.too_long(alive is not None, time.monotonic()):
            lost = f"the head of the Ray cluster at {address} has not answered for {PATIENCE_S:g} s"
        if lost and not stopped.is_set():
            end(f"{lost}: the run ends; go on with the same command and --resume when there is a cluster again")
            return


def _end(message: str) -> None:
    """End this process, and the processes of a cluster it started, even those that are stopped."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    try:
        kill_own_processes()
    finally:
        os._exit(EXIT_LOST)
