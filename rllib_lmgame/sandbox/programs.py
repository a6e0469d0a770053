"""Runs a player's program in the strongest mode of this machine, once it is let in."""

from __future__ import annotations

from rllib_lmgame.sandbox.gate import machine_gate, memory_of
from rllib_lmgame.sandbox.limits import Limits, ProgramEnd
from rllib_lmgame.sandbox.modes import mode_for_programs
from rllib_lmgame.sandbox.process import run_now


def run_program(
    program: str, stdin: str | bytes = b"", limits: Limits | None = None, mode: str | None = None
) -> ProgramEnd:
    """Run a program to its end once it is let in. Raises: SandboxError: it cannot be set up (``SandboxBusyError``: no
    room).
    """
    limits, mode = limits or Limits(), mode or mode_for_programs()  # looking for a mode runs programs too
    with machine_gate().admitted(memory_of(limits)):
        return run_now(program, stdin, limits, mode)
