"""A test of one game is skipped, with the reason, where the game's engine is not installed."""

from __future__ import annotations

import pytest

from rllib_lmgame.envs.registry import make_game
from rllib_lmgame.errors import MissingDependencyError


@pytest.fixture(autouse=True)
def engine_is_installed(request: pytest.FixtureRequest) -> None:
    """Building a game says what it needs."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    game = params.get("game")
    if isinstance(game, str) and game.startswith("lmgame/"):
        try:
            make_game(game).close()
        except MissingDependencyError as missing:
            pytest.skip(str(missing))
