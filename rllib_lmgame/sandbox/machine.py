"""Cores and memory this process may use, within its control groups (containers, job schedulers)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUPS = "sys/fs/cgroup"
NO_LIMIT = 2**60
"""Version 1 writes "no limit" as a number beyond this one."""


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may run on, within the processor quotas of its control groups (rounded up); at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *_quotas(root)]))


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes of memory, within the limits of control groups. Raises: OSError: where the system does not tell."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *_memory_limits(root)])


def _quotas(root: Path) -> Iterator[int]:
    for folder in _groups(root, ""):
        quota, _, period = _words(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            yield -(-int(quota) // int(period))
    for folder in _groups(root, "cpu"):
        quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            yield -(-int(quota) // int(period))


def _memory_limits(root: Path) -> Iterator[int]:
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in _groups(root, controller):
            limit = _words(folder / name)
            if limit.isdigit() and int(limit) < NO_LIMIT:
                yield int(limit)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups and those above; version 2 if ``controller`` is empty, else 1.

    In a container the path the kernel tells may not exist below the mount; the mount's root does.
    """
    for line in _words(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (controller in names.split(",")) if controller else not names:
            bases = [root / CGROUPS / controller] if controller else [root / CGROUPS, root / CGROUPS / "unified"]
            inner = PurePosixPath(path.lstrip("/"))
            for base in bases:
                yield from (base / part for part in (inner, *inner.parents))


def _words(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
