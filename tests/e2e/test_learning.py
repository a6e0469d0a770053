"""Runs learn as well as the committed curves say: ``make test-learning``."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest

from rllib_lmgame.cli import main
from rllib_lmgame.experiments.results.curves import read_heldout, success_over_levels
from rllib_lmgame.experiments.results.files import json_lines
from rllib_lmgame.experiments.selftest.running import run_apart
from rllib_lmgame.measures.statistics import mean_interval

ROOT = Path(__file__).resolve().parents[2]
RESULTS, LAST = ROOT / "docs" / "results", ("48", "gae")


def trained(tmp_path: Path, example: str, *settings: str) -> Path:
    """The trial's folder after an example has run."""
    log = tmp_path / "log"
    line = ["train", "file", str(ROOT / "tuned_examples" / example), "--storage-path", str(tmp_path), *settings]
    why = run_apart([sys.executable, "-m", "rllib_lmgame.cli", *line, "--no-ray-ui"], log, 1500, dict(os.environ))
    assert not why, f"{why}: {log.read_text()[-4000:]}"
    return next(tmp_path.glob("*/*/result.json")).parent


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_the_quick_start_wins_as_often_as_ever(tmp_path: Path) -> None:
    """Not less often than the interval of the worst of three committed seeds allows."""
    with (RESULTS / "quickstart-heldout.csv").open() as file:
        least = min(float(row["low"]) for row in csv.DictReader(file) if row["milestone"] == "after training")
    verdicts = read_heldout(trained(tmp_path, "quickstart-sokoban.yaml"))["after training"]
    assert success_over_levels(verdicts)[2] >= least


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_self_play_becomes_as_hard_to_exploit_as_ever(tmp_path: Path) -> None:
    """Below the 95 % prediction bound of three committed seeds; uniform play has 0.458."""
    with (RESULTS / "vrpo.csv").open() as file:
        ends = [row for row in csv.DictReader(file) if (row["iteration"], row["training.advantage_estimator"]) == LAST]
    gae = [float(row["evaluation/exploitability"]) for row in ends]
    mean, _, high = mean_interval(gae)
    most = mean + (high - mean) * (1 + len(gae)) ** 0.5
    trial = trained(tmp_path, "kuhn-selfplay-tiny.yaml", "--stop", "{training_iteration: 50}")
    assert [*json_lines(trial / "result.json")][-1]["evaluation"]["exploitability"] <= most


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_ppo_learns_small_games() -> None:
    """The warm start alone keeps within the bounds of the quick start."""
    assert main(["doctor", "--learning"]) == 0
