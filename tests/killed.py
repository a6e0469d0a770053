"""Processes that die at every point where they touch the disk, one after another."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

DIED, DONE = 9, 0
_TOUCHES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link")
_WRITES = os.O_WRONLY | os.O_RDWR


def killed_everywhere(prepare: Callable[[], object], act: Callable[[], object]) -> Iterator[int]:
    """Let a process of its own ``act`` and die before its first touch of the disk, then, prepared anew, before its
    second, and so on until it comes to its end; yields the number of each touch it died at, with what it left.

    A file that is opened to be written is empty at its death: nothing has been flushed.
    """
    number = 0
    while True:
        prepare()
        child = os.fork()
        if child == 0:
            _act(act, number)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != DIED:
            return
        yield number
        number += 1


def _act(act: Callable[[], object], number: int) -> None:
    left, dying = number, False

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left, dying
        if dying or event not in _TOUCHES:
            return
        path, flags = arguments[0], arguments[2] if event == "open" else _WRITES
        if not isinstance(flags, int) or not flags & _WRITES:
            return
        if left == 0:
            dying = True
            if event == "open" and isinstance(path, str | bytes | os.PathLike):
                os.close(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY))
            os._exit(DIED)
        left -= 1

    sys.addaudithook(watch)
    try:
        act()
    finally:
        os._exit(DONE)
