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


def checked(settings):
    """An experiment as ``rllib train`` checks it."""
    spec = make_spec("own", settings, Source("own.yaml"))
    check_quickly([spec])
    return check_experiments([spec])[0]


@pytest.mark.slow
def test_one_file_and_one_entry_are_enough(example, ray_cluster, tiny_dict, tmp_path) -> None:
    from rllib_lmgame.cli import main
    from rllib_lmgame.evaluation.saved_config import open_checkpoint

    config = tiny_dict(selection={"keep": 0.25})
    stop = {"kept_episodes": 1000}
    by_path, by_name = (checked({"run": run, "stop": stop, "config": config}) for run in (PATH, "selective_ppo:ENTRY"))
    assert by_path.algorithm.cls is by_name.algorithm.cls and not by_name.spec.notices and not by_path.spec.notices
    algorithm = by_path.algorithm.cls(config=by_path.configs[0])
    try:
        result = algorithm.train()
        checkpoint = Path(algorithm.save_to_path(tmp_path / "checkpoint"))
    finally:
        algorithm.stop()
    assert result["kept_episodes"] == 4 and result["phase"] == 1 and result["learners"]["player"]["trained_tokens"] > 0
    saved = json.loads((checkpoint / CONFIG_FILE).read_text())
    assert saved[RUN] == PATH and saved["selection"] == {"keep": 0.25}
    _, read = open_checkpoint(checkpoint, trust=True)
    assert type(read) is type(by_name.configs[0]) and read.run.selection.keep == 0.25
    flags = ["--episodes", "4", "--split", "validation", "--trust-checkpoint", "--json"]
    assert main(["evaluate", str(checkpoint), *flags]) == 0


def test_the_current_value_of_an_option_is_where_the_page_says(example: Path) -> None:
    (place,) = re.findall(r"`self\.at_present\(\)\.(\S+)` is its current value", PAGE.read_text(encoding="utf-8"))
    config = importlib.import_module("selective_ppo").SelectivePPOConfig().selection(keep=0.25)
    assert attrgetter(place)(config.run.at({})) == 0.25


def test_wrong_settings_are_answered_as_for_the_algorithms_of_the_package(example, tiny_dict) -> None:
    for stop, config, words in (
        ({"kept_epsiodes": 1}, {}, "stop.kept_epsiodes: no result has this metric; did you mean 'kept_episodes'"),
        (
            {"kept_episodes": 1},
            {"selection": {"keep": 2}},
            "config.selection.keep: must be less than or equal to 1, got the whole number 2",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            checked({"run": "selective_ppo:ENTRY", "stop": stop, "config": tiny_dict(**config)})
        assert words in str(caught.value)
