"""Runs on data sets that are not here: refused before Ray starts, looked at by a dry run."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hub_server import HubServer, quiet, serve_gsm8k

from rllib_lmgame.cli.main import main
from rllib_lmgame.downloads.fetch import fetch
from rllib_lmgame.envs.registry import made_up_levels
from rllib_lmgame.evaluation import learning_report as report
from rllib_lmgame.rollouts.options import GameConfig

RUN = {
    "tiny": {
        "run": "LMGamePPO",
        "env": "lmgame/Sokoban-v0",
        "stop": {"training_iteration": 1},
        "config": {
            "env_config": {"split": "train"},
            "language_model": {"model": "tiny", "dtype": "float32", "max_tokens_per_turn": 16, "context_length": 1024},
            "inference": {"engine": "transformers"},
            "evaluation_interval": 1,
            "evaluation_config": {"games": [{"env": "lmgame/GSM8K-v0", "env_config": {"data": "data:gsm8k"}}]},
        },
    }
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(RUN), encoding="utf-8")
    return path


@pytest.mark.parametrize("training", [False, True])
def test_a_run_is_refused_with_the_command_that_brings_its_data(
    hub: HubServer, file: Path, capsys: pytest.CaptureFixture[str], training: bool
) -> None:
    more = ["--set", "env=lmgame/GSM8K-v0", "--set", "config.env_config.data=data:gsm8k"] if training else []
    assert main(["train", "file", str(file), *more]) == 2
    key = "config.env_config.data" if training else r"config.evaluation_config.games[0].env_config.data"
    said = capsys.readouterr().err
    assert key in said and "`rllib data fetch gsm8k` brings it (3 MB)" in said


def test_a_dry_run_goes_on_and_says_what_is_made_up(
    hub: HubServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "file", str(file), "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "config.evaluation_config.games[0].env_config.data: data set 'gsm8k' is not here" in said.err
    assert "this dry run goes on without it" in said.err
    assert "lmgame/GSM8K-v0 plays made-up levels, not GSM8K (`data: data:gsm8k`)" in said.out


def test_a_dry_run_with_the_data_speaks_of_nothing_made_up(
    hub: HubServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_gsm8k(hub)
    fetch("gsm8k", report=quiet)
    assert main(["train", "file", str(file), "--dry-run"]) == 0
    said = capsys.readouterr()
    assert [line for line in (said.err + said.out).splitlines() if "made-up" in line] == []
    assert "data:gsm8k" in said.out


def test_made_up_levels_are_told_of_games_that_imitate_published_ones() -> None:
    games = [
        GameConfig(env="lmgame/GSM8KFiveTries-v0", env_config={}),
        GameConfig(env="lmgame/Sokoban-v0", env_config={}),
        GameConfig(env="lmgame/BIRD-v0", env_config={"data": "data:bird"}),
        GameConfig(env="lmgame/WebShop-v0", env_config={"data": None}),
    ]
    assert made_up_levels(games) == [
        "lmgame/GSM8KFiveTries-v0 plays made-up levels, not GSM8K (`data: data:gsm8k`)",
        "lmgame/WebShop-v0 plays made-up levels, not WebShop's products (`data: data:webshop`)",
    ]


def test_the_learning_report_says_whose_levels_were_made_up_and_samples_as_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    games = [GameConfig(env="lmgame/BIRD-v0", env_config={"split": "test"}, temperature=0.7, episodes=3)]
    run, asked = SimpleNamespace(evaluation_config=SimpleNamespace(sampling=0.5)), []
    config = SimpleNamespace(games_for_evaluation=lambda split: games, run=run)
    monkeypatch.setattr(report, "saved_policies", lambda *args, **kwargs: config)
    monkeypatch.setattr(report, "engines_for", lambda *args: nullcontext())
    monkeypatch.setattr(report, "play", lambda *said, **_: asked.append(said) or SimpleNamespace(summaries=[]))
    monkeypatch.setattr(report, "read_log", lambda path: [{}])
    monkeypatch.setattr(report, "episode_text", lambda record: "an episode")
    report._report_trial(tmp_path, tmp_path, 4, "test")
    told = "lmgame/BIRD-v0 plays made-up levels, not BIRD (`data: data:bird`)"
    assert f"note: {told}\n" in capsys.readouterr().out
    assert json.loads((tmp_path / report.REPORT_FILE).read_text())["made_up_levels"] == [told]
    (_, games, *how), *others = asked  # As evaluation samples, greedily, and the episode that is shown.
    assert [how, *(other[2:] for other in others)] == [[4, 0.5], (4, 0.0), (1, 0.5)]
    assert [(each[0].temperature, each[0].episodes) for _, each, *_ in asked] == [
        (0.7, None),
        (None, None),
        (0.7, None),
    ]
