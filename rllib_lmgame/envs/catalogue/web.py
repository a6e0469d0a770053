"""Shops, sites and search."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/WebShop-v0",
        "rllib_lmgame.envs.webshop:WebShop",
        "Find, configure and buy the product an instruction describes.",
        horizon=11,
        reward_range=(-1.1, 1.0),
        solver=True,
    ),
)
