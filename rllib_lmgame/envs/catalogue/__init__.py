"""The games of this package, one module per family."""

from __future__ import annotations

import dataclasses

from rllib_lmgame.envs.catalogue import (
    adapted,
    code,
    crafting,
    dilemmas,
    duels,
    grids,
    mathematics,
    talk,
    teams,
    web,
    words,
)
from rllib_lmgame.envs.registry import register_game

FAMILIES = (grids, words, mathematics, crafting, code, web, adapted, duels, dilemmas, talk, teams)
GAMES = tuple(dataclasses.replace(spec, own=True) for family in FAMILIES for spec in family.GAMES)
"""Every game of this package: what stands here is its own, wherever the class lives."""


def register_all() -> None:
    """Make all games known."""
    for spec in GAMES:
        register_game(spec)
