"""Images are built from pinned bases and the versions of constraints.txt, hold no secret, and run as a user."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_bases_are_exact_versions_and_nothing_is_secret(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases and all(re.search(r":\d+\.\d+\.\d+", base) for base in bases), bases
    assert not re.search(r"(?i)token|secret|passw|api_?key|--trusted-host|--index-url|curl|http:", text)
    assert re.search(r"^USER [1-9]\d*$", text, re.MULTILINE)
    assert re.search(r"python:3\.1[1-3]\.\d+-", text), "a Python that the versions are tested with"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_packages_have_the_pinned_versions(file: Path) -> None:
    steps = re.sub(r"\\\n", " ", file.read_text(encoding="utf-8"))
    installs = [
        part
        for line in re.findall(r"^RUN (.*)", steps, re.MULTILINE)
        for part in line.split("&&")
        if "pip install" in part
    ]
    assert installs or "RUN make install " in steps, "make takes constraints.txt"
    assert all("--constraint constraints.txt" in part for part in installs)
    extras = set(re.findall(r'^        "([\w-]+)": ', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE))
    named = {extra for part in installs for found in re.findall(r"'\.\[(.*?)\]'", part) for extra in found.split(",")}
    assert named <= extras


def test_what_is_copied_leaves_out_what_git_ignores() -> None:
    left_out = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n"))
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()}
    assert {line.removeprefix("**/") for line in left_out} >= ignored | {".git"}
