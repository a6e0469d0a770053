"""How many sandboxed programs run at once: one limit for all processes of a user on a machine.

Many env runners play many games each. Programs that share a core with twenty others run out of time through no fault of
their own, and together they may take more memory than there is. So a run is let in first, and its clock begins then.

Guarantees, each with a test:

1. At most as many runs as there are slots, in all processes together; one that may use more memory than a slot's share
   takes several.
2. Nobody is passed over: a process lets its runs in by age, and the next one of all processes waits alone for its
   slots.
3. A process that dies gives back what it held: a slot is a locked file, and the kernel frees the lock.
4. A wait ends, in :class:`SandboxBusyError`. It is not the game's own time (:mod:`rllib_lmgame.base.step_timer`).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import stat
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rllib_lmgame.base.step_timer import waiting
from rllib_lmgame.sandbox.limits import Limits, SandboxBusyError, SandboxError
from rllib_lmgame.sandbox.machine import usable_cores, usable_memory

SLOTS = "RLLIB_LMGAME_SANDBOX_PROGRAMS"
"""Environment variable: programs at once, in place of what cores and memory allow."""
WAIT_S = "RLLIB_LMGAME_SANDBOX_WAIT_S"
"""Environment variable: seconds a run waits to be let in before its episode is given up."""
DEFAULT_WAIT_S = 600.0
MEMORY_SHARE = 0.5
"""Part of the machine's memory that sandboxed programs may use together."""
POLL_S = 0.005
"""Locks of other processes are looked at this often; those of this process are seen at once."""


@dataclass(frozen=True)
class Capacity:
    """Slots, and the memory of each in bytes (``None``: not counted)."""

    slots: int
    memory_bytes: int | None = None

    def slots_of(self, memory_bytes: int) -> int:
        """Slots a run with this memory limit takes; at most all."""
        if self.memory_bytes is None:
            return 1
        return min(self.slots, max(1, math.ceil(memory_bytes / self.memory_bytes)))


class ConcurrencyLimit:
    """Lets runs in, at most ``size.slots`` at once. Processes with the same ``folder`` share it."""

    def __init__(self, folder: Path, size: Capacity, wait_s: float) -> None:
        self.folder = folder
        self.size = size
        self.wait_s = wait_s
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def admitted(self, memory_bytes: int) -> Iterator[None]:
        """Wait to be let in, and hold what ``memory_bytes`` take until the end of the ``with``.

        Raises: SandboxBusyError: it took longer than ``wait_s``; SandboxError: the limit's folder cannot be used.
        """
        wanted = self.size.slots_of(memory_bytes)
        held = self._at_once(wanted)
        if held is None:
            with waiting():
                held = self._in_turn(wanted, time.monotonic() + self.wait_s)
        try:
            yield
        finally:
            _release(held)
            with self._changed:
                self._changed.notify_all()

    def _at_once(self, wanted: int) -> list[int] | None:
        if self._line:
            return None
        turn = self._lock("turn")
        if turn is None:
            return None
        try:
            held = self._free(wanted)
            if len(held) == wanted:
                return held
            _release(held)
            return None
        finally:
            _release([turn])

    def _in_turn(self, wanted: int, deadline: float) -> list[int]:
        """Wait for this thread's turn in the process, for the process's turn, and then for the slots."""
        held: list[int] = []
        ticket = object()
        with self._changed:
            self._line.append(ticket)
        try:
            self._wait(lambda: self._line[0] is ticket, deadline, None)
            turn: list[int] = []
            try:
                self._wait(lambda: bool(turn) or self._take(turn, "turn"), deadline, POLL_S)
                self._wait(lambda: self._gather(held, wanted), deadline, POLL_S)
            finally:
                _release(turn)
            return held
        except BaseException:
            _release(held)
            raise
        finally:
            with self._changed:
                self._line.remove(ticket)
                self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], deadline: float, look_every_s: float | None) -> None:
        with self._changed:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise SandboxBusyError(
                        f"no sandbox was free for {self.wait_s:g} s ({self.size.slots} programs run at once on this "
                        "machine); lower the number of games played at once or the time limit of a program, or set "
                        f"{SLOTS} or {WAIT_S}"
                    )
                self._changed.wait(left if look_every_s is None else min(left, look_every_s))

    def _take(self, held: list[int], name: str) -> bool:
        descriptor = self._lock(name)
        if descriptor is not None:
            held.append(descriptor)
        return descriptor is not None

    def _gather(self, held: list[int], wanted: int) -> bool:
        held += self._free(wanted - len(held))
        return len(held) == wanted

    def _free(self, wanted: int) -> list[int]:
        """At most ``wanted`` slots that are free now, locked."""
        held: list[int] = []
        for slot in range(self.size.slots):
            if len(held) == wanted:
                break
            self._take(held, f"slot-{slot}")
        return held

    def _lock(self, name: str) -> int | None:
        """A descriptor that holds a file's lock, or ``None`` if another one does."""
        try:
            descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise SandboxError(
                f"the folder {self.folder}, in which running programs are counted, cannot be used: {error}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor


def _release(descriptors: list[int]) -> None:
    """Unlock and close. (Closing alone would not unlock what a forked process inherited.)"""
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
    descriptors.clear()


def machine_limit() -> ConcurrencyLimit:
    return _limit(os.getpid(), os.environ.get(SLOTS, ""), os.environ.get(WAIT_S, ""))


@cache
def _limit(process: int, slots: str, wait_s: str) -> ConcurrencyLimit:
    size = Capacity(int(_number(SLOTS, slots, 1))) if slots else machine_size()
    return ConcurrencyLimit(lock_folder(), size, _number(WAIT_S, wait_s, 0) if wait_s else DEFAULT_WAIT_S)


def machine_size() -> Capacity:
    """One slot for each core, each with its part of a share of the memory."""
    cores = usable_cores()
    return Capacity(cores, int(usable_memory() * MEMORY_SHARE / cores))


def memory_of(limits: Limits, processes: int = 1) -> int:
    """Bytes that ``processes`` under these limits may use, with the files they write in memory."""
    return processes * (limits.memory_bytes + limits.disk_bytes)


def lock_folder(parent: Path | None = None) -> Path:
    """This user's folder for the slots' files, made if missing. Raises: SandboxError: others own or may write to it."""
    folder = (parent or Path(tempfile.gettempdir())) / f"rllib-lmgame-sandbox-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SandboxError(
            f"{folder} is not a directory that this user alone can write to; remove it, or set TMPDIR to another place"
        )
    return folder


def _number(name: str, text: str, low: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value < math.inf:
        raise SandboxError(f"the environment variable {name} is {text!r}; it must be a number of at least {low:g}")
    return value
