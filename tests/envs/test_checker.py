"""The checker finds nothing wrong with our games, and the fault of each broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllib_lmgame.envs.checker import check_game
from rllib_lmgame.envs.registry import games

VARIANTS = [
    ("lmgame/Sokoban-v0", {"split": "test", "show_legal_actions": True, "show_coordinates": True}),
    ("lmgame/Sokoban-v0", {"max_actions": None, "max_turns": 5, "invalid_action_penalty": -1.0}),
    ("lmgame/Blocksworld-v0", {"num_blocks": 5, "observation": "2d", "min_distance": 4}),
    ("lmgame/Blocksworld-v0", {"observation": "1d", "max_invalid_actions": None}),
    ("lmgame/FrozenLake-v0", {"size": 8, "max_actions": 40}),
    ("lmgame/KuhnPoker-v0", {"players": 3, "show_legal_actions": True}),
    ("lmgame/TicTacToe-v0", {"max_invalid_actions": 1, "invalid_action_penalty": 0.0}),
]

BROKEN = {
    "NoRules": "instructions",
    "Unseeded": "made in reset(seed)",
    "SaltedHash": "hash()",
    "NotANumber": "finite number",
    "RaisesOnGarbage": "raised KeyError",
    "ListsIllegal": "list only what is accepted",
    "Endless": "max_turns",
    "NoSuccess": "info['success']",
    "BothFlags": "both true",
    "SharedLevels": "share",
    "OneLevel": "every seed gives the same level",
    "WrongSolver": "return what the game accepts",
    "LazySolver": "does not solve",
    "UnmarkedGarbage": "info['invalid_action']",
    "NotZeroSum": "zero_sum",
    "NumberSpace": "gymnasium.spaces.Text",
}


@pytest.fixture(autouse=True)
def broken_games_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.parametrize("game", [game for game in games() if game.startswith("lmgame/")])
def test_every_game_keeps_the_contract(game: str) -> None:
    assert check_game(game) == []


@pytest.mark.parametrize(("game", "config"), VARIANTS)
def test_variants_keep_the_contract(game: str, config: dict) -> None:
    assert check_game(game, config) == []


@pytest.mark.parametrize("game", ["broken_games:Counting", "broken_games:Matching"])
def test_a_sound_game_by_import_path_passes(game: str) -> None:
    assert check_game(game) == []


@pytest.mark.parametrize(("name", "said"), BROKEN.items())
def test_the_fault_of_a_broken_game_is_named(name: str, said: str) -> None:
    problems = check_game(f"broken_games:{name}")
    assert any(said in problem for problem in problems), problems


def test_a_class_may_be_given_instead_of_a_name() -> None:
    from broken_games import NoRules

    assert check_game(NoRules) == check_game("broken_games:NoRules") != []


def test_a_game_that_cannot_be_built_is_one_problem() -> None:
    (problem,) = check_game("lmgame/Sokoban-v0", {"dim_rom": [6, 6]})
    assert "dim_room" in problem
