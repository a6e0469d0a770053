"""The algorithm of the documentation: one file and one entry, found by either way, trained, saved and evaluated."""

from __future__ import annotations

import importlib
import json
import re
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from rllib_lmgame.algorithms.config import CONFIG_FILE, RUN
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.config.algorithms import ENTRY_POINT_GROUP
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.spec import Source, make_spec

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
PATH = "selective_ppo:SelectivePPO"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A directory that can be imported from, with the file of the page."""
    match = re.search(r"<!-- tested: (\S+) -->\n```python\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match, "the page shows an algorithm"
    (tmp_path / match.group(1)).write_text(match.group(2) + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("selective_ppo", None)


@pytest.fixture
def announce(example: Path):
    """Function ``(value)`` that announces the algorithm as an installed package does."""

    def write(value: str) -> None:
        info = example / "selective-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: selective\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nSelectivePPO = {value}\n")

    return write


def checked(settings):
    """An experiment as ``rllib train`` checks it."""
    spec = make_spec("own", settings, Source("own.yaml"))
    check_quickly([spec])
    return check_experiments([spec])[0]


@pytest.mark.slow
def test_one_file_and_one_entry_are_enough(announce, ray_cluster, tiny_dict, tmp_path) -> None:
    from rllib_lmgame.evaluation.evaluate import evaluate_checkpoint
    from rllib_lmgame.evaluation.saved_config import open_checkpoint

    announce("selective_ppo:ENTRY")
    config = tiny_dict(selection={"keep": 0.25})
    stop = {"kept_episodes": 1000}
    by_path, by_name = (checked({"run": run, "stop": stop, "config": config}) for run in (PATH, "SelectivePPO"))
    assert by_path.algorithm == by_name.algorithm and not by_name.spec.notices and not by_path.spec.notices
    algorithm = by_path.algorithm.cls(config=by_path.configs[0])
    try:
        result = algorithm.train()
        checkpoint = Path(algorithm.save_to_path(tmp_path / "checkpoint"))
    finally:
        algorithm.stop()
    assert result["kept_episodes"] == 4 and result["phase"] == 1 and result["learners"]["player"]["trained_tokens"] > 0
    saved = json.loads((checkpoint / CONFIG_FILE).read_text())
    assert saved[RUN] == "SelectivePPO" and saved["selection"] == {"keep": 0.25}
    _, read = open_checkpoint(checkpoint, trust=True)
    assert type(read) is type(by_name.configs[0]) and read.run.selection.keep == 0.25
    assert evaluate_checkpoint(checkpoint, num_episodes=4, split="validation")["num_episodes"] == 4


def test_the_current_value_of_an_option_is_where_the_page_says(example: Path) -> None:
    (place,) = re.findall(r"`self\.at_present\(\)\.(\S+)` is its current value", PAGE.read_text(encoding="utf-8"))
    config = importlib.import_module("selective_ppo").SelectivePPOConfig().selection(keep=0.25)
    assert attrgetter(place)(config.run.at({})) == 0.25


def test_wrong_settings_are_answered_as_for_the_algorithms_of_the_package(announce, tiny_dict) -> None:
    announce("selective_ppo:ENTRY")
    for stop, config, words in (
        ({"kept_epsiodes": 1}, {}, "stop.kept_epsiodes: no result has this metric; did you mean 'kept_episodes'"),
        (
            {"kept_episodes": 1},
            {"selection": {"keep": 2}},
            "config.selection.keep: must be less than or equal to 1, got the whole number 2",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            checked({"run": "SelectivePPO", "stop": stop, "config": tiny_dict(**config)})
        assert words in str(caught.value)
