"""Files are those of the directory where the command is run, also for processes of a cluster that is elsewhere."""

from __future__ import annotations

import pytest

from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.experiments import runner
from rllib_lmgame.experiments.run.cluster import RunOptions
from rllib_lmgame.experiments.runner import with_paths_of_here
from tests.experiments.test_check import check
from tests.experiments.test_datasets import record

PPO = OWN["LMGamePPO"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name in ("log.jsonl", "sums.jsonl", "other.jsonl"):
        (tmp_path / name).write_text(record())
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_file_that_a_configuration_names_is_named_whole(here) -> None:
    game = {"env": "lmgame/GSM8K-v0", "env_config": {"data": "sums.jsonl", "families": ["log.jsonl"]}}
    config = {
        **game,
        "language_model": {"model": "model", "history": "keep"},
        "warm_start": {"data": {"grid_search": ["log.jsonl", "other.jsonl", None]}},
        "policies": {"teacher": {"language_model": {"tokenizer": "./model"}}, "other": None},
        "evaluation_config": {"games": [game, "lmgame/Sokoban-v0", {"env": "lmgame/Sokoban-v0"}]},
    }
    whole = with_paths_of_here(config, PPO)
    there = {"env": "lmgame/GSM8K-v0", "env_config": {"data": str(here / "sums.jsonl"), "families": ["log.jsonl"]}}
    assert whole == {
        **there,
        "language_model": {"model": str(here / "model"), "history": "keep"},
        "warm_start": {"data": {"grid_search": [str(here / "log.jsonl"), str(here / "other.jsonl"), None]}},
        "policies": {"teacher": {"language_model": {"tokenizer": str(here / "model")}}, "other": None},
        "evaluation_config": {"games": [there, "lmgame/Sokoban-v0", {"env": "lmgame/Sokoban-v0"}]},
    }
    assert config["env_config"]["data"] == "sums.jsonl"  # What was written stays, for `--resume` to compare.
    assert with_paths_of_here(config, None) == config


@pytest.mark.parametrize("name", ["teacher", "league", "policies"])
def test_a_policy_may_be_called_as_a_section_is(name, here) -> None:
    own, there = ({"language_model": {"model": model}} for model in ("model", str(here / "model")))
    for key in ("policies", "algorithm_config_overrides_per_module"):
        assert with_paths_of_here({key: {name: own}}, PPO) == {key: {name: there}}


@pytest.mark.parametrize("word", ["tiny", "org/model", "~nobody/model", "none.jsonl", "\x00"])
def test_what_is_no_file_here_stays(word, here) -> None:
    (here / "tiny").mkdir()
    config = {"language_model": {"model": word}, "warm_start": {"data": "missing.jsonl"}}
    of_others = {"env": "json:loads", "env_config": {"language_model": {"model": "model"}}}
    config |= {**of_others, "games": [of_others]}
    assert with_paths_of_here(config, PPO) == config


def test_the_trial_is_given_whole_paths(here, monkeypatch) -> None:
    given = {}

    class Started(Exception):
        """Instead of the run."""

    def run(*_, **arguments) -> None:
        given.update(arguments)
        raise Started

    monkeypatch.setattr("ray.tune.run", run)
    text = "a:\n  run: LMGameSFT\n  env: lmgame/Sokoban-v0\n  stop: {supervised_steps: 1}\n  config: {}\n"
    experiment = check(text, "config.supervised.data=log.jsonl", f"storage_path={here}/results")
    with pytest.raises(Started):
        runner._run_one(experiment, RunOptions(), 0.0)
    assert given["config"]["supervised"]["data"] == str(here / "log.jsonl")
