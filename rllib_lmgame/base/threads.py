"""How many threads a process computes with on CPUs: what ``num_threads: auto`` means.

Playing and updating take turns, so each phase may have all cores of its trial. The processes of one phase share them:
the engines while games are played, the learners during an update.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

AUTO: Final = "auto"

MOST_THREADS = 1024
"""More than machines have cores; torch crashes where it is given too many."""

FEW_PARAMETERS = 10_000_000
"""Models smaller than this compute with one thread: their operations are too short to be shared
(docs/results/benchmarks.md, threads).
"""

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_ENVIRONMENT = Path("/proc/self/environ")


def threads_each(cores: float, processes: int, others: int = 0, most: int | None = None) -> int:
    """Threads of each of so many ``processes`` that compute on ``cores`` at the same time, from one to ``most``.

    ``others`` are processes that work beside them and take one core.
    """
    share = int((cores - others) / max(1, processes) + 1e-9)
    return max(1, share if most is None else min(share, most))


def cores_of_trial(usable: float, declared: float, reserved: float, at_once: int | None = None) -> float:
    """Of the ``usable`` cores of a node those of a trial with ``reserved`` of the ``declared`` CPUs (maybe more).

    They are its part of all where ``at_once`` trials and nothing else may run there.
    """
    share = reserved * min(1.0, usable / declared) if declared > 0 else 0.0
    return max(share, usable / at_once) if at_once else share


def usable_cores() -> int:
    """Cores of this machine that this process may use, within its affinity and its container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="utf-8").split()
        return bound if quota == "max" else max(1, min(bound, int(quota) // int(period)))
    except (OSError, ValueError):
        return bound


def openmp_threads(environment: Mapping[str, str]) -> int | None:
    """What ``OMP_NUM_THREADS`` asks for; ``None`` if it is not there, or no number of threads."""
    text = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) > 0 else None


def first_environment() -> dict[str, str]:
    """Environment that this process was started with; that of now where it cannot be read."""
    try:
        entries = os.fsdecode(_ENVIRONMENT.read_bytes()).split("\0")
    except OSError:
        return dict(os.environ)
    return {name: value for name, equals, value in (entry.partition("=") for entry in entries) if equals}


def threads_here(processes: int = 1) -> int:
    """Threads of each of ``processes`` that have this machine for themselves."""
    return threads_each(usable_cores(), processes, most=openmp_threads(os.environ))
