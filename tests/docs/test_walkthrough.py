"""docs/walkthrough.md names the files that an iteration goes through: held against the calls of a real run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MOST_FILES = 30

pytestmark = pytest.mark.slow

ASIDE = {
    "cli/main": "which command it is",
    "cli/signals": "how a command ends",
    "cli/games": "options that several commands have",
    "cli/example": "which examples are shipped",
    "policies/chat/repl": "the form of replies, of which there are several",
    "experiments/files/": "reading the file",
    "experiments/spec": "values that know where they were written",
    "experiments/checks/": "checks before a run",
    "experiments/search/": "what Tune is given: spaces, schedulers, what ends a trial",
    "experiments/run/": "Ray, signals and interrupted runs, around Tune's loop",
    "experiments/results/": "files and tables of results",
    "settings/": "what a run may be set to",
    "algorithms/config": "RLlib's configuration, which collects settings",
    "learners/settings": "the learner's part of the settings",
    "algorithms/cluster/": "which actor is asked, how long it is waited for, and what if it died",
    "learners/ranks": "sums over learners: there is one here",
    "policies/mapping": "which of several policies has a seat: there is one here",
    "envs/": "the game, which has a page of its own",
    "rollouts/game_calls": "calls into the game, bounded in time",
    "inference/engines/": "the engine: vLLM or Transformers behind one protocol",
    "policies/model/": "the network: Transformers' own, on packed rows",
    "learners/critic/": "units and fit of the value function: neither is set here",
    "telemetry/": "what is told of a run",
    "rollouts/metrics": "what is told of episodes",
    "rollouts/log/": "what is written down of episodes",
    "algorithms/checkpoints/cards": "what a model card tells of a run",
    "learners/data/token_log": "what is written down of tokens",
    "learners/metrics": "what is told of an update",
    "learners/freed_memory": "memory that the system gets back",
}
"""Rooms, and files that are a room of their own, that do not count as the way, each with the reason. What lies at the
top of the package (errors, paths, text) does not count either.
"""


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


def way(calls: list[tuple[float, str, str]]) -> dict[str, set[str]]:
    """Files of the way from the command to the changed weight -> their functions that were called.

    Before Tune has the experiment the command's own files count: what else is called then is asked by checks. Of the
    iterations the second counts, since what is built once and kept is there.
    """
    steps = [time for time, _, function in calls if function == "LMGamePPO.training_step"]
    told = [time for time, _, function in calls if function == "LMGamePPO.log_result"]
    first, start = min(steps), min(time for time in steps if time > min(told))
    end = min(time for time in told if time > start)
    found: dict[str, set[str]] = defaultdict(set)
    for time, file, function in calls:
        launching = time < first and file.startswith(("cli/", "experiments/"))
        if (launching or start <= time <= end) and "/" in file and not file.startswith(tuple(ASIDE)):
            found[file].add(function)
    return found


def named() -> set[str]:
    """Files of the package that the page names."""
    page = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
    return set(re.findall(r"\]\(\.\./rllib_lmgame/([\w/]+\.py)\)", page))


def test_the_page_names_every_file_of_the_way_and_they_are_few(calls: list[tuple[float, str, str]]) -> None:
    found = way(calls)
    assert {file: sorted(functions) for file, functions in found.items() if file not in named()} == {}
    assert len(found) <= MOST_FILES, sorted(found)


def test_nothing_is_named_that_is_not_on_the_way(calls: list[tuple[float, str, str]]) -> None:
    called = {file for _, file, _ in calls}
    assert named() - called == set()
    assert {room for room in ASIDE if not any(file.startswith(room) for file in called)} == set()
