"""Runs learn as well as the committed curves say: ``make test-learning``."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest

from rllib_lmgame.cli import main
from rllib_lmgame.experiments.results.curves import read_heldout, success_over_levels
from rllib_lmgame.experiments.selftest.running import run_apart

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tuned_examples" / "quickstart-sokoban.yaml"


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_the_quick_start_wins_as_often_as_ever(tmp_path: Path) -> None:
    """Not less often than the interval of the worst of three committed seeds allows."""
    with (ROOT / "docs" / "results" / "quickstart-heldout.csv").open() as file:
        least = min(float(row["low"]) for row in csv.DictReader(file) if row["milestone"] == "after training")
    log = tmp_path / "log"
    line = ["train", "file", str(EXAMPLE), "--storage-path", str(tmp_path), "--no-ray-ui"]
    why = run_apart([sys.executable, "-m", "rllib_lmgame.cli", *line], log, 1500, dict(os.environ))
    assert not why, f"{why}: {log.read_text()[-4000:]}"
    verdicts = read_heldout(next(tmp_path.glob("*/*/result.json")).parent)["after training"]
    assert success_over_levels(verdicts)[2] >= least


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_ppo_learns_small_games() -> None:
    """The warm start alone keeps within the bounds of the quick start."""
    assert main(["doctor", "--learning"]) == 0
