"""How many sandboxed programs run at once: one limit for all processes of a user on a machine.

Many env runners play many games each. Programs that share a core with twenty others run out of time through no fault of
their own, and together they may take more memory than there is. So a run is let in first, and its clock begins then.

Guarantees, each with a test:

1. At most as many runs as there are slots, in all processes together.
2. A process that dies gives back what it held: a slot is a locked file, and the kernel frees the lock.
3. A wait ends, in :class:`SandboxBusyError`. It is not the game's own time (:mod:`rllib_lmgame.base.step_timer`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rllib_lmgame.base.step_timer import waiting
from rllib_lmgame.base.threads import usable_cores
from rllib_lmgame.sandbox.limits import SandboxBusyError, SandboxError

SLOTS = "RLLIB_LMGAME_SANDBOX_PROGRAMS"
"""Environment variable: programs at once, in place of what cores and memory allow."""
WAIT_S = 600.0
"""Seconds that a run waits to be let in before its episode is given up."""
MEMORY_SHARE, SLOT_BYTES = 0.5, 1 << 30
"""Part of the machine's memory that sandboxed programs may use together, and what one is taken to use."""
POLL_S = 0.005
"""Locks of other processes are looked at this often; those of this process are seen at once."""
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class ConcurrencyLimit:
    """Lets runs in, at most ``slots`` at once. Processes with the same ``folder`` share it."""

    def __init__(self, folder: Path, slots: int, wait_s: float) -> None:
        self.folder, self.slots, self.wait_s = folder, slots, wait_s
        self._turn = threading.Lock()  # One thread of a process looks for a slot, the others wait for it.
        self._freed = threading.Event()

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Wait to be let in, and hold a slot until the end of the ``with``.

        Raises: SandboxBusyError: it took longer than ``wait_s``; SandboxError: the limit's folder cannot be used.
        """
        with waiting():
            slot = self._wait(time.monotonic() + self.wait_s)
        try:
            yield
        finally:
            fcntl.flock(slot, fcntl.LOCK_UN)  # Closing alone would not unlock what a forked process inherited.
            os.close(slot)
            self._freed.set()

    def _wait(self, deadline: float) -> int:
        if self._turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                while (slot := self._free_slot()) is None and time.monotonic() < deadline:
                    self._freed.wait(POLL_S)
                    self._freed.clear()
            finally:
                self._turn.release()
            if slot is not None:
                return slot
        raise SandboxBusyError(
            f"no sandbox was free for {self.wait_s:g} s ({self.slots} programs run at once on this machine); lower the "
            f"number of games played at once or the time limit of a program, or set {SLOTS}"
        )

    def _free_slot(self) -> int | None:
        """A descriptor that holds the lock of a free slot; ``None`` if there is none."""
        for number in range(self.slots):
            path = self.folder / f"slot-{number}"
            try:
                slot = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise SandboxError(f"{path}, which counts running programs, cannot be used: {error}") from error
            try:
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(slot)
            else:
                return slot
        return None


def machine_limit() -> ConcurrencyLimit:
    """Raises: SandboxError: the environment variable is no number of programs."""
    return _limit(os.getpid(), os.environ.get(SLOTS, ""))


@cache
def _limit(process: int, slots: str) -> ConcurrencyLimit:
    if slots and not (slots.isdecimal() and len(slots) < 6 and int(slots)):
        raise SandboxError(f"the environment variable {SLOTS} is {slots!r}; it must be a whole number of at least 1")
    most = int(slots) if slots else max(1, min(usable_cores(), _usable_memory() // SLOT_BYTES))
    return ConcurrencyLimit(lock_folder(), most, WAIT_S)


def _usable_memory() -> int:
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in map(Path, _MEMORY_LIMITS):
        with contextlib.suppress(OSError, ValueError):  # There is no such file, or it says "max".
            found.append(int(path.read_text()))
    return int(min(found) * MEMORY_SHARE)


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
