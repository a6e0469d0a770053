"""How many files an iteration enters, traced in all processes, and that docs/architecture.md names files of its way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MOST_FILES = 62
MOST_OF_CONFIGURATION = 2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory, tiny_dict) -> list[tuple[float, str, str]]:
    """Time, file and function of the calls in all processes of ``rllib train file`` with two tiny iterations."""
    place = tmp_path_factory.mktemp("walk")
    (place / "calls").mkdir()
    config = tiny_dict(language_model={"model": "tiny"})
    experiment = {"walk": {"run": "LMGamePPO", "stop": {"training_iteration": 2}, "config": config}}
    (place / "walk.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    paths = [str(ROOT / "tests" / "docs" / "tracing"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-m", "rllib_lmgame.cli", "train", "file", str(place / "walk.yaml")],
        env=os.environ | {"CALLS_DIR": str(place / "calls"), "PYTHONPATH": os.pathsep.join(paths), "HOME": str(place)},
        capture_output=True,
        text=True,
        cwd=place,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line.split("\t") for file in (place / "calls").iterdir() for line in file.read_text().splitlines()]
    return sorted((float(time), file, function) for time, file, function in lines)


def test_the_second_iteration_enters_few_files(calls: list[tuple[float, str, str]]) -> None:
    """Nothing is set aside. The second counts, since what is built once and kept is there."""
    steps = [time for time, _, function in calls if function == "LMGamePPO.training_step"]
    ends = [time for time, _, function in calls if function == "LMGamePPO.log_result"]
    start = min(time for time in steps if time > min(ends))
    end = min(time for time in ends if time > start)
    files = sorted({file for time, file, _ in calls if start <= time <= end})
    assert len(files) <= MOST_FILES, files
    assert sum(file.startswith("config/") for file in files) <= MOST_OF_CONFIGURATION, files


def test_files_that_the_page_names_are_on_the_way(calls: list[tuple[float, str, str]]) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## One iteration through the code")[2].partition("\n## ")[0]
    named = set(re.findall(r"\]\(\.\./rllib_lmgame/([\w/]+\.py)\)", section))
    assert len(named) > 15 and named - {file for _, file, _ in calls} == set()
