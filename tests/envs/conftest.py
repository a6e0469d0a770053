"""A test of one game is skipped where the game's engine is not installed, and is a slow test where the engine is."""

from __future__ import annotations

from functools import cache

import pytest

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs.registry import games, make_game

SLOW_GAMES = ("lmgame/MiniWoB-v0", "lmgame/SciWorld-v0", "lmgame/TextNav-v0", "lmgame/TextNavPartial-v0")
"""Setting up a level takes a tenth of a second or more, and the tests of all games set up some thousand."""


def game_of(item: pytest.Item) -> str:
    """Id of the game a test is run for."""
    game = item.callspec.params.get("game") if hasattr(item, "callspec") else None
    return game if isinstance(game, str) else ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long."""
    for item in items:
        if game_of(item) in SLOW_GAMES and item.path.name != "test_golden.py":
            item.add_marker(pytest.mark.slow)


@cache
def missing(game: str) -> str:
    """What the game needs and is not installed; building it says so."""
    try:
        make_game(game).close()
    except MissingDependencyError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def engine_is_installed(request: pytest.FixtureRequest) -> None:
    """Skip the tests of a game whose engine is missing."""
    game = game_of(request.node)
    if game and game in games() and missing(game):
        pytest.skip(missing(game))
