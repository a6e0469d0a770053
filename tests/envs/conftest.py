"""A test of one game is skipped where the game's engine is not installed."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs.registry import games, make_game

sys.path.insert(0, str(Path(__file__).parent))  # Games that tests name by import path.


def game_of(item: pytest.Item) -> str:
    """Id of the game a test is run for."""
    game = item.callspec.params.get("game") if hasattr(item, "callspec") else None
    return game if isinstance(game, str) else ""


@cache
def missing(game: str) -> str:
    """What the game needs and is not installed; building it says so."""
    try:
        make_game(game).close()
    except MissingDependencyError as error:
        return str(error)
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of a game whose engine is missing."""
    game = game_of(item)
    if game and game in games() and missing(game):
        pytest.skip(missing(game))
