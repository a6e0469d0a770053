"""Crafting."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/TextCraft-v0",
        "rllib_lmgame.envs.games.crafting.textcraft.game:TextCraft",
        "Craft an item from what can be got.",
        horizon=30,
        reward_range=(-2.1, 1.0),
        solver=True,
    ),
)
