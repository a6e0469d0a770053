"""Fixed points of a penalty that stays, against known ones."""

from __future__ import annotations

import sys

import fixed_points
import pytest


@pytest.mark.parametrize(
    ("penalty", "exploitability", "value"), [(0.2, "0.04357", "-0.04604"), (0.5, "0.11241", "-0.04484")]
)
def test_kuhn_poker_under_a_penalty_to_uniform_play(
    penalty: float, exploitability: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exploitabilities as those that ``tests/learners/test_magnet.py`` holds the learner's loss to."""
    monkeypatch.setattr(sys, "argv", ["x", "lmgame/KuhnPoker-v0", "--penalty", str(penalty), "--step", "0.1"])
    fixed_points.main()
    assert capsys.readouterr().out == f"exploitability {exploitability}, value for the first player {value}\n"
