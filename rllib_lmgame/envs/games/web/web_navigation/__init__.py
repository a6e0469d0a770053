"""WebNavigation: tasks on a web site shown as accessibility-tree text."""

from __future__ import annotations

from rllib_lmgame.envs.games.web.web_navigation.game import WebNavigation, WebNavigationOptions

__all__ = ["WebNavigation", "WebNavigationOptions"]
