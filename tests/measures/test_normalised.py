"""LMRL-Gym's score of a return."""

from __future__ import annotations

import pytest

from rllib_lmgame.measures.normalised import score_in


@pytest.mark.parametrize(
    ("value", "expected"), [(-101, 0), (-92, 25), (-83, 50), (-44.92, 75), (-6.84, 100), (-110, -25)]
)
def test_the_scale_bends_at_what_the_data_earns(value: float, expected: float) -> None:
    assert score_in("lmgame/Maze-v0", {}, value) == pytest.approx(expected)


def test_games_and_options_without_numbers_have_no_score() -> None:
    assert score_in("lmgame/Maze-v0", {"split": "test", "show_rules": False}, -83) == 50
    assert score_in("lmgame/Maze-v0", {"map": "umaze"}, -83) is None
    assert score_in("lmgame/Maze-v0", {"observation": "walls", "history": 20}, -83) is None
    assert score_in("lmgame/Maze-v0", {"max_actions_per_turn": 4}, -83) is None
    there = {"opponent": "stockfish", "opening_plies": 0}
    assert score_in("lmgame/Chess-v0", there | {"observation": "fen"}, 0.605) == pytest.approx(75)
    assert score_in("lmgame/Chess-v0", {}, 0.21) is None, "another opponent"
    assert score_in("lmgame/ChessEndgames-v0", {"split": "test"}, 0.586) == 50
    assert score_in("lmgame/ChessEndgames-v0", {"defender": "random"}, 0.586) is None
    assert score_in("lmgame/FrozenLake-v0", {}, 1.0) is None
