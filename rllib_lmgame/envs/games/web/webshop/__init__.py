"""WebShop: buy the product an instruction describes, in a shop of text pages."""

from __future__ import annotations

from rllib_lmgame.envs.games.web.webshop.game import WebShop, WebShopOptions

__all__ = ["WebShop", "WebShopOptions"]
