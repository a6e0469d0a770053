"""A small site of four sections: shop, forum, issue tracker and content management."""

from __future__ import annotations

from rllib_lmgame.envs.games.web.web_navigation.site.site import Site, SiteBackend, build_site, copy_site

__all__ = ["Site", "SiteBackend", "build_site", "copy_site"]
