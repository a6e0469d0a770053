"""What a sandboxed process may see and do: the command and the launcher's job, made from plain values.

``bubblewrap``
    ``bwrap`` makes an empty root with the interpreter's libraries read-only and a temporary directory in memory, no
    network, own process and IPC namespaces. A seccomp filter and resource limits go on top.
``seccomp``
    Where that does not work: the filter allows no files, sockets or processes. Modules of ``PRELOADED`` are imported
    beforehand; no other that is a file can be (the launcher's ``ctypes`` and ``resource`` are there too).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rllib_lmgame.sandbox.limits import Limits
from rllib_lmgame.sandbox.seccomp import FULL, NO_FILES, READ_ONLY, seccomp_filter

BUBBLEWRAP, SECCOMP = "bubblewrap", "seccomp"
MODES = (BUBBLEWRAP, SECCOMP)
"""The stronger one first."""

_PRELOADED = """
__future__ abc array bisect cmath collections contextlib copy datetime decimal enum fractions functools hashlib heapq
itertools json math operator queue random re statistics string struct textwrap time typing unicodedata
"""
PRELOADED = tuple(_PRELOADED.split())
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
LAUNCHER = Path(__file__).with_name("launcher.py")
BOUND_LAUNCHER = "/launcher.py"
"""Its path inside bubblewrap, which hides the path on this machine."""


def command_of(mode: str, limits: Limits, info_fd: int, read_paths: Sequence[str]) -> list[str]:
    """The command of a process. Bubblewrap tells of its child on ``info_fd``, and shows ``read_paths``."""
    python = [interpreter(), "-I", "-S", "-B", "-X", "utf8"]
    if mode == BUBBLEWRAP:
        return [*bubblewrap_command(limits.disk_bytes, info_fd, read_paths), *python, BOUND_LAUNCHER]
    return [*python, str(LAUNCHER)]


def job_of(mode: str, limits: Limits, program: str, status_fd: int, server: bool) -> dict[str, Any]:
    """What the launcher is told: how to confine itself, and what to run then.

    Args:
        mode: One of :data:`MODES`.
        limits: Bounds of the process.
        program: Source text.
        status_fd: Descriptor on which the launcher says that it is ready, or what failed.
        server: A worker of ours that may read files, keeps this user and outlives the thread that started it.
    """
    bounds = {
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_AS": limits.memory_bytes,
    }
    if mode == BUBBLEWRAP:  # Threads are counted per user, and here the process has one of its own.
        profile, bounds["RLIMIT_NPROC"] = FULL, limits.threads
    else:
        profile = READ_ONLY if server else NO_FILES
    return {
        "program": program,
        "status": status_fd,
        "preload": PRELOADED if profile == NO_FILES else (),
        "filter": seccomp_filter(profile),
        "limits": bounds,
        "keeps_user": server,
        "dies_with_parent": not server,
    }


@cache
def interpreter() -> str:
    """The Python executable outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def library_paths() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """What a program needs to see: directories, symbolic links among them, installed packages to hide in them."""
    wanted = [*SYSTEM_LIBRARIES, os.path.join(sys.base_prefix, "lib"), os.path.join(sys.base_exec_prefix, "lib")]
    links = tuple(path for path in SYSTEM_LIBRARIES if os.path.islink(path))
    real = sorted({os.path.realpath(path) for path in wanted if os.path.isdir(path) and path not in links})
    binds = tuple(path for path in real if not any(path != other and path.startswith(other + "/") for other in real))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    hidden = [
        os.path.join(base, name, folder)
        for base in real
        for name in (version, "python3")
        for folder in ("site-packages", "dist-packages")
    ]
    return binds, links, tuple(path for path in hidden if os.path.isdir(path) and not os.path.islink(path))


def bubblewrap_command(disk_bytes: int, info_fd: int, extra: Sequence[str]) -> list[str]:
    binds, links, masks = library_paths()
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--clearenv"]
    command += ["--cap-drop", "ALL", "--info-fd", str(info_fd)]
    command += ["--uid", "65534", "--gid", "65534"]
    # before the binds: one may lie below it
    command += ["--perms", "1777", "--size", str(disk_bytes), "--tmpfs", "/tmp"]
    command += ["--chdir", "/tmp"]
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
