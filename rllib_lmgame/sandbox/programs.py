"""Runs a player's program in the mode of this machine: the first of :data:`MODES` in which a program runs."""

from __future__ import annotations

import platform
import shutil
import threading
from dataclasses import dataclass

from rllib_lmgame.sandbox.concurrency_limit import machine_limit
from rllib_lmgame.sandbox.confinement import BUBBLEWRAP, MODES, SECCOMP
from rllib_lmgame.sandbox.limits import Limits, ProgramEnd, SandboxError
from rllib_lmgame.sandbox.process import run_now
from rllib_lmgame.sandbox.seccomp import FULL, NO_FILES, seccomp_filter

NO_MODE = ""
PROBE_LIMITS = Limits(wall_s=60.0)
"""A busy machine must not be taken for one that lacks a mode."""

_lock = threading.Lock()
_found: list[str] = []
_failed: dict[str, str] = {}
"""Why modes do not work here."""


def sandbox_mode() -> str:
    """The mode that works here. Raises: SandboxError: none does."""
    mode = find_mode()
    if mode == NO_MODE:
        raise SandboxError(weakness(mode))
    return mode


def find_mode() -> str:
    """The first mode that works here, found once by running a program in it, or :data:`NO_MODE`."""
    with _lock:
        if not _found:
            _found.append(next((mode for mode in MODES if works(mode)), NO_MODE))
        return _found[0]


def weakness(mode: str) -> str:
    """Why bubblewrap is not used, and what that means; empty if it is."""
    if mode == BUBBLEWRAP:
        return ""
    reason = f"bubblewrap does not work here ({_failed.get(BUBBLEWRAP, 'it was not tried')})"
    if mode == NO_MODE:
        return f"{reason} and neither does seccomp, so programs that models write are refused; install bubblewrap"
    return f"{reason}, so programs run under {describe_mode(mode)}; see docs/trust.md"


def describe_mode(mode: str) -> str:
    """A mode in a few words."""
    if mode == SECCOMP:
        return "seccomp filter without any files, and resource limits"
    return f"bubblewrap, {'seccomp filter ' if seccomp_filter(FULL) else ''}and resource limits" if mode else "nothing"


def works(mode: str) -> bool:
    """Whether a program runs in a mode."""
    if mode == BUBBLEWRAP and shutil.which("bwrap") is None:
        _failed[mode] = "there is no bwrap on the PATH"
        return False
    if mode == SECCOMP and not seccomp_filter(NO_FILES):
        return False
    try:
        outcome = run_now("import math; print(math.factorial(5))", b"", PROBE_LIMITS, mode)
    except SandboxError as error:
        _failed[mode] = str(error)
        return False
    if outcome.ok and outcome.stdout == "120\n":
        return True
    _failed[mode] = outcome.problem() or "a trivial program printed something else"
    return False


def run_program(
    program: str, stdin: str | bytes = b"", limits: Limits | None = None, mode: str | None = None
) -> ProgramEnd:
    """Run a program to its end once it is let in.

    Raises: SandboxError: it cannot be set up here; ``SandboxBusyError``: too many programs run.
    """
    limits, mode = limits or Limits(), mode or sandbox_mode()  # looking for a mode runs programs too
    with machine_limit().admitted():
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
    mode, slots = find_mode(), machine_limit().slots
    text = f"{describe_mode(mode)}; at most {slots} program{'s' if slots > 1 else ''} at once"
    return SandboxReport(platform.node(), text, weakness(mode), mode == NO_MODE)
