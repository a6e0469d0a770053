"""The games of this package, one module per family."""

from __future__ import annotations

from rllib_lmgame.envs.catalogue import code, crafting, duels, engines, grids, mathematics, web, words
from rllib_lmgame.envs.registry import register_game

FAMILIES = (grids, words, mathematics, crafting, code, web, engines, duels)
GAMES = tuple(spec for family in FAMILIES for spec in family.GAMES)


def register_all() -> None:
    """Make all games known."""
    for spec in GAMES:
        register_game(spec)
