"""A game that has begun, as most tests of games need one, one that the expert plays to its end, and all games."""

from __future__ import annotations

from typing import Any

import pytest
from pettingzoo import AECEnv

from rllib_lmgame.envs.registry import own_games

QUICK = {f"lmgame/{name}-v0" for name in ("GSM8K", "KuhnPoker", "RockPaperScissors", "Sokoban", "WebShop", "Werewolf")}
"""Games of each kind. What takes long is tested with these, and with all games by ``make test-slow``."""
each_game = pytest.mark.parametrize(
    "game", [game if game in QUICK else pytest.param(game, marks=pytest.mark.slow) for game in own_games()]
)


def begun(game: Any, *replies: str, level: Any = None, seed: int = 0) -> Any:
    """``game`` (or its session) after a reset, at ``level`` where one is given, and after ``replies``."""
    game.reset(seed=seed)
    if isinstance(game, AECEnv) and level is not None:
        game.level = level
        game.start()
    elif level is not None:
        game.start(level)
    for reply in replies:
        game.step(reply)
    return game


def played_by_expert(game: Any) -> tuple[float, dict[str, Any]]:
    """Return and last info of the expert's game from here, in which each of its replies is valid."""
    total, done, cut = 0.0, False, False
    info: dict[str, Any] = {}
    while not (done or cut):
        _, reward, done, cut, info = game.step(game.expert_action() or "")
        assert not info["invalid_action"]
        total += reward
    return total, info
