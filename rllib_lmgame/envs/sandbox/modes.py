"""Which means of confinement this machine offers.

In this order, the first that works is taken:

``bubblewrap``
    ``bwrap`` makes the namespaces; a seccomp filter and resource limits go on top.
``namespaces``
    The same, made by our own launcher: an empty root with the interpreter's libraries read-only and a temporary directory in memory,
    no network, own process and IPC namespaces, no capabilities.
``seccomp``
    Where namespaces are forbidden (many containers): the filter allows no files at all, no sockets and no processes; the modules of
    ``PRELOADED`` are imported beforehand, and no other can be that is a file (the launcher's ``ctypes`` and ``resource`` are there too).
``limits``
    Resource limits alone. A program could read the user's files and use the network, so it is refused unless it is asked for.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from functools import cache
from pathlib import Path

from rllib_lmgame.envs.sandbox.limits import Limits, SandboxError
from rllib_lmgame.envs.sandbox.seccomp import FULL, NO_FILES, READ_ONLY, seccomp_filter

logger = logging.getLogger(__name__)

BUBBLEWRAP, NAMESPACES, SECCOMP, LIMITS = "bubblewrap", "namespaces", "seccomp", "limits"
MODES = (BUBBLEWRAP, NAMESPACES, SECCOMP, LIMITS)
ALLOW_WEAK = "RLLIB_LMGAME_ALLOW_WEAK_SANDBOX"
"""Environment variable that allows the mode ``limits`` for programs where nothing better works."""

PRELOADED = (
    *("abc", "array", "bisect", "collections", "contextlib", "copy", "datetime", "decimal", "enum", "fractions", "functools"),
    *("heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "textwrap", "time", "typing"),
)
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
PROBE_LIMITS = Limits(wall_s=60.0)
"""A busy machine must not be taken for one that lacks a mode."""
LAUNCHER = Path(__file__).with_name("launcher.py")
BOUND_LAUNCHER = "/launcher.py"
"""Where bubblewrap shows it, so that no path of ours is seen."""

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
    """The strongest mode that works here, said once in the log: a warning where it is weaker than namespaces."""
    mode = find_mode()
    with _lock:
        said = mode in _said
        _said.append(mode)
    if not said:
        weaker = weakness(mode)
        logger.log(logging.WARNING if weaker else logging.INFO, "sandbox for programs: %s", weaker or describe_mode(mode))
    return mode


def find_mode() -> str:
    """The strongest mode that works here, found once by running a program in it."""
    with _lock:
        if not _found:
            _found.append(next(mode for mode in MODES if works(mode)))
        return _found[0]


def weakness(mode: str) -> str:
    """What is to be said of a mode that is only a fall-back, and why it is taken; empty for the others."""
    if mode not in (SECCOMP, LIMITS):
        return ""
    reason = f" ({_failed[NAMESPACES]})" if NAMESPACES in _failed else ""
    text = f"no namespaces can be made here{reason}, so programs run under {describe_mode(mode)}; docs/sandbox.md tells what that means"
    return f"{text}, and programs are refused unless {ALLOW_WEAK}=1 is set" if mode == LIMITS else text


def describe_mode(mode: str) -> str:
    """The mode in words."""
    return _DESCRIPTIONS[mode].format(filter="seccomp filter " if seccomp_filter(FULL) else "")


def mode_for_programs() -> str:
    """The mode in which programs of a player may be run.

    Raises:
        SandboxError: if there are only resource limits and ``RLLIB_LMGAME_ALLOW_WEAK_SANDBOX=1`` is not set.
    """
    mode = sandbox_mode()
    if mode == LIMITS and os.environ.get(ALLOW_WEAK) != "1":
        raise SandboxError(
            "this machine has neither bubblewrap nor namespaces nor seccomp to confine programs with; install bubblewrap, allow user namespaces, "
            f"or set {ALLOW_WEAK}=1 to run them under resource limits alone ({describe_mode(LIMITS)})"
        )
    return mode


def works(mode: str) -> bool:
    """Whether a trivial program runs in ``mode``."""
    from rllib_lmgame.envs.sandbox.process import run_now  # it needs this module

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


def filter_of(mode: str, reads_files: bool) -> bytes:
    """The seccomp filter of a mode; a worker of ours may read files where a player's program may not."""
    if mode == LIMITS:
        return b""
    if mode == SECCOMP:
        return seccomp_filter(READ_ONLY if reads_files else NO_FILES)
    return seccomp_filter(FULL)


@cache
def interpreter() -> str:
    """The Python executable outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def library_paths() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """What a program needs to see: directories, symbolic links among them, and directories to hide within (installed packages)."""
    wanted = [*SYSTEM_LIBRARIES, os.path.join(sys.base_prefix, "lib"), os.path.join(sys.base_exec_prefix, "lib")]
    links = tuple(path for path in SYSTEM_LIBRARIES if os.path.islink(path))
    real = sorted({os.path.realpath(path) for path in wanted if os.path.isdir(path) and path not in links})
    binds = tuple(path for path in real if not any(path != other and path.startswith(other + "/") for other in real))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    hidden = [os.path.join(base, name, folder) for base in real for name in (version, "python3") for folder in ("site-packages", "dist-packages")]
    return binds, links, tuple(path for path in hidden if os.path.isdir(path) and not os.path.islink(path))


def bubblewrap_command(disk_bytes: int, info_fd: int, extra: tuple[str, ...]) -> list[str]:
    """The command that makes the namespaces, to be followed by the interpreter's."""
    binds, links, masks = library_paths()
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--clearenv", "--info-fd", str(info_fd)]
    command += ["--uid", "65534", "--gid", "65534"]
    command += ["--perms", "1777", "--size", str(disk_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]  # before the binds: one may lie below it
    for path in (*binds, interpreter(), *extra):
        command += ["--ro-bind", path, path]
    command += ["--ro-bind", str(LAUNCHER), BOUND_LAUNCHER]
    for path in links:
        command += ["--symlink", os.readlink(path), path]
    for path in masks:
        command += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    command += ["--dir", "/dev"]
    for device in ("null", "zero", "urandom"):
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return [*command, "--remount-ro", "/", "--"]
