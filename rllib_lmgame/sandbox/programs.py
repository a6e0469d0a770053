"""Runs a player's program in the mode of this machine, once it is let in, and says what confines it."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from rllib_lmgame.sandbox.concurrency_limit import machine_limit, memory_of
from rllib_lmgame.sandbox.limits import Limits, ProgramEnd
from rllib_lmgame.sandbox.modes import NO_MODE, describe_mode, find_mode, sandbox_mode, weakness
from rllib_lmgame.sandbox.process import run_now


def run_program(
    program: str, stdin: str | bytes = b"", limits: Limits | None = None, mode: str | None = None
) -> ProgramEnd:
    """Run a program to its end once it is let in.

    Raises: SandboxError: it cannot be set up here; ``SandboxBusyError``: too many programs run.
    """
    limits, mode = limits or Limits(), mode or sandbox_mode()  # looking for a mode runs programs too
    with machine_limit().admitted(memory_of(limits)):
        return run_now(program, stdin, limits, mode)


@dataclass(frozen=True)
class SandboxReport:
    """A machine's sandbox: mode and programs at once, why it is weak (or empty), and whether programs are refused."""

    host: str
    text: str
    warning: str
    refused: bool


def report_sandbox() -> SandboxReport:
    """The sandbox here. Raises: SandboxError: if the limit's settings are wrong."""
    mode, slots = find_mode(), machine_limit().size.slots
    text = f"{describe_mode(mode)}; at most {slots} program{'s' if slots > 1 else ''} at once"
    return SandboxReport(platform.node(), text, weakness(mode), mode == NO_MODE)
