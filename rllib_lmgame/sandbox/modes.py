"""Which confinement works here: the first of :data:`~rllib_lmgame.sandbox.confinement.MODES` that runs a program."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading

from rllib_lmgame.sandbox.confinement import BUBBLEWRAP, LIMITS, MODES, NAMESPACES, SECCOMP
from rllib_lmgame.sandbox.limits import Limits, SandboxError
from rllib_lmgame.sandbox.process import run_now
from rllib_lmgame.sandbox.seccomp import FULL, NO_FILES, seccomp_filter

logger = logging.getLogger(__name__)

ALLOW_WEAK = "RLLIB_LMGAME_ALLOW_WEAK_SANDBOX"
"""Environment variable that allows the mode ``limits`` where nothing better works."""

PROBE_LIMITS = Limits(wall_s=60.0)
"""A busy machine must not be taken for one that lacks a mode."""

_DESCRIPTIONS = {
    BUBBLEWRAP: "bubblewrap, seccomp filter and resource limits",
    NAMESPACES: "namespaces, {filter}and resource limits",
    SECCOMP: "seccomp filter without any files, and resource limits",
    LIMITS: "resource limits only: programs can read this user's files and use the network",
}
_lock = threading.Lock()
_found: list[str] = []
_said: list[str] = []
_failed: dict[str, str] = {}
"""Why stronger modes do not work here."""


def sandbox_mode() -> str:
    """The strongest mode that works here, said once in the log: as a warning if weaker than namespaces."""
    mode = find_mode()
    with _lock:
        said = mode in _said
        _said.append(mode)
    if not said:
        weaker = weakness(mode)
        logger.log(
            logging.WARNING if weaker else logging.INFO, "sandbox for programs: %s", weaker or describe_mode(mode)
        )
    return mode


def find_mode() -> str:
    """The strongest mode that works here, found once by running a program in it."""
    with _lock:
        if not _found:
            _found.append(next(mode for mode in MODES if works(mode)))
        return _found[0]


def weakness(mode: str) -> str:
    """Why a mode is only a fall-back; empty for the others."""
    if mode not in (SECCOMP, LIMITS):
        return ""
    reason = f" ({_failed[NAMESPACES]})" if NAMESPACES in _failed else ""
    text = (
        f"no namespaces can be made here{reason}, so programs run under {describe_mode(mode)}; docs/trust.md tells "
        "what that means"
    )
    return f"{text}, and programs are refused unless {ALLOW_WEAK}=1 is set" if mode == LIMITS else text


def describe_mode(mode: str) -> str:
    return _DESCRIPTIONS[mode].format(filter="seccomp filter " if seccomp_filter(FULL) else "")


def mode_for_programs() -> str:
    """The mode for a player's programs. Raises: SandboxError: only limits work, and :data:`ALLOW_WEAK` is not ``1``."""
    mode = sandbox_mode()
    if mode == LIMITS and os.environ.get(ALLOW_WEAK) != "1":
        raise SandboxError(
            "this machine has neither bubblewrap nor namespaces nor seccomp to confine programs with; install "
            f"bubblewrap, allow user namespaces, or set {ALLOW_WEAK}=1 to run them under resource limits alone "
            f"({describe_mode(LIMITS)})"
        )
    return mode


def works(mode: str) -> bool:
    if mode == BUBBLEWRAP and shutil.which("bwrap") is None:
        return False
    if mode in (BUBBLEWRAP, NAMESPACES) and sys.platform != "linux":
        return False
    if mode == SECCOMP and not seccomp_filter(NO_FILES):
        return False
    if mode == LIMITS:
        return True
    try:
        outcome = run_now("import math; print(math.factorial(5))", b"", PROBE_LIMITS, mode)
    except SandboxError as error:
        _failed[mode] = str(error)
        logger.debug("sandbox mode %s does not work here: %s", mode, error)
        return False
    works_here = outcome.ok and outcome.stdout == "120\n"
    if not works_here:
        _failed[mode] = outcome.problem() or "a trivial program printed something else"
    return works_here
