"""What the common base does with a reply, whatever the game."""

from __future__ import annotations

import pytest

from rllib_lmgame.envs import make_game, make_session
from rllib_lmgame.envs.deep_search.game import read_plain
from rllib_lmgame.envs.gsm8k import GSM8K
from rllib_lmgame.envs.math_reasoning.game import MathReasoning
from rllib_lmgame.envs.math_reasoning.problems import Problem
from rllib_lmgame.envs.math_reasoning.solutions import Range


@pytest.mark.parametrize(
    ("game", "reply"),
    [
        ("lmgame/Maze-v0", "move up || move down"),
        ("lmgame/Wordle-v0", "crane || stone"),
        ("lmgame/Chess-v0", "e4 || d4"),
        ("lmgame/GSM8KFiveTries-v0", "16 || 999999"),
        ("lmgame/DeepSearch-v0", "answer[right] || answer[Paris]"),
        ("lmgame/DeepSearch-v0", "search[right]\nanswer[Paris]"),
        ("lmgame/TwentyQuestions-v0", "Is it a dog? || Is it a cat?"),
        ("lmgame/GuessMyCity-v0", "Is it Paris? || Is it Rome?"),
        ("lmgame/BabyAI-v0", "turn left || turn right"),
    ],
)
def test_different_moves_where_one_is_asked_for_are_invalid(game: str, reply: str) -> None:
    session = make_session(game, {"colour": "white", "opening_plies": 0} if "Chess" in game else {})
    session.reset(0)
    result = session.step({"player": reply})
    assert result.infos["player"]["invalid_action"] and not result.infos["player"].get("success")


def test_the_same_move_twice_is_one_move() -> None:
    game = make_game("lmgame/Wordle-v0", {"show_rules": False})
    game.reset(seed=0)
    observation, _, _, _, info = game.step("crane || Crane")
    assert not info["invalid_action"] and info["actions_taken"] == 1 and "1. crane:" in observation


def test_bars_in_an_answer_belong_to_it() -> None:
    assert read_plain("search[red || blue]") == ("search", "red || blue")
    game = GSM8K(max_turns=5)
    game.reset(seed=0)
    answer = game.expert_action()
    assert game.step(f"{answer} || {answer}")[1] == 10.0
    algebra = MathReasoning()
    algebra.reset(seed=0)
    algebra.start(("inequality", Problem("Which x?", Range("x < -10 or x > 1"))))
    assert algebra.step("x < -10 || x > 1")[1] == 1.0


def test_a_cut_reply_says_how_many_moves_were_made() -> None:
    game = make_game("lmgame/FrozenLake-v0", {"show_rules": False, "max_actions": 6})
    game.reset(seed=0)
    assert "moves were made" not in game.step("Up || Up")[0]
    game.reset(seed=0)
    assert game.step(" || ".join(["Up"] * 7))[0].startswith("Only the first 5 of 7 moves were made.")
    observation, _, _, truncated, _ = game.step("Up || Up || Up")
    assert observation.startswith("Only the first 1 of 3 moves were made.") and truncated
    game.reset(seed=0)
    path = (game.solve() or [])[:-1]
    game.step(" || ".join(path))
    last = (game.solve() or [])[0]
    assert "moves were made" not in game.step(f"{last} || Up || Up || Up || Up || Up")[0]


def test_a_game_that_lists_no_actions_shows_no_empty_list() -> None:
    assert "Legal actions" not in make_game("lmgame/GSM8K-v0", {"show_legal_actions": True}).reset(seed=0)[0]
    assert "Legal actions: " in make_game("lmgame/Maze-v0", {"show_legal_actions": True}).reset(seed=0)[0]
