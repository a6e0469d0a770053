"""Shops, sites and search."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/WebShop-v0",
        "rllib_lmgame.envs.games.web.webshop:WebShop",
        "Find, configure and buy the product an instruction describes.",
        horizon=11,
        reward_range=(-0.8, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/DeepSearch-v0",
        "rllib_lmgame.envs.games.web.deep_search:DeepSearch",
        "Answer a question by searching a corpus, hop by hop.",
        horizon=5,
        reward_range=(-0.4, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/WebNavigation-v0",
        "rllib_lmgame.envs.games.web.web_navigation:WebNavigation",
        "Do a task on a site of shop, forum, issue tracker and CMS.",
        horizon=15,
        reward_range=(-1.1, 1.0),
        solver=True,
    ),
)
