"""A game that has begun, as most tests of games need one."""

from __future__ import annotations

from typing import Any

from pettingzoo import AECEnv


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
