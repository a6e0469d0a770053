"""Limits of a sandboxed program, and how its run ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from rllib_lmgame.base.step_timer import WaitedTooLong

MEBIBYTE = 2**20
FINISHED, TIMEOUT, TOO_MUCH_OUTPUT = "finished", "timeout", "too much output"


class SandboxError(RuntimeError):
    """The sandbox itself could not be set up; the message says what was missing."""


class SandboxBusyError(SandboxError, WaitedTooLong):
    """No program was let in for a long time; this says nothing about the program."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one run.

    Attributes:
        wall_s: Seconds until everything is killed.
        cpu_s: Seconds of processor time.
        memory_bytes: Address space.
        file_bytes: Largest file that may be written.
        disk_bytes: All files in the temporary directory, which lives in memory.
        open_files: File descriptors.
        threads: Threads of the program, the first included; further processes are refused.
        output_bytes: Bytes kept of each output; a program that writes more is killed.
    """

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_bytes: int = 512 * MEBIBYTE
    file_bytes: int = 8 * MEBIBYTE
    disk_bytes: int = 16 * MEBIBYTE
    open_files: int = 64
    threads: int = 32
    output_bytes: int = 64 * 1024


@dataclass(frozen=True)
class ProgramEnd:
    """How a run ended: both outputs, cut at :attr:`Limits.output_bytes`, and seconds by the clock, start-up included.

    ``exit_code`` is negative for a signal, and ``None`` if the program was killed for ``stop``.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    stop: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.stop == FINISHED and self.exit_code == 0

    def problem(self) -> str:
        if self.stop == TIMEOUT:
            return "it ran too long and was stopped"
        if self.stop == TOO_MUCH_OUTPUT:
            return "it wrote too much output and was stopped"
        if self.exit_code == -signal.SIGKILL:
            return "it used too much processor time or memory and was stopped"
        if self.exit_code is not None and self.exit_code < 0:
            return f"it was killed by signal {-self.exit_code}"
        last = self.stderr.rstrip().rsplit("\n", 1)[-1].strip()
        return "" if self.exit_code == 0 else last or f"it ended with exit status {self.exit_code}"
