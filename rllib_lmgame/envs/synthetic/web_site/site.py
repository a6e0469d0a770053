"""The whole site: its state, and what answers requests to it."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from rllib_lmgame.envs.synthetic.web_site import cms, forum, shop, tracker
from rllib_lmgame.envs.synthetic.web_site.page import Fields, Page, words

SECTIONS = (("Shop", "/shop"), ("Forum", "/forum"), ("Issue tracker", "/tracker"), ("Content management", "/cms"))


@dataclass
class Site:
    """State of all sections; two sites are equal if nothing tells them apart.

    Attributes:
        user: Name the player is logged in with.
    """

    user: str
    shop: shop.Shop
    forum: forum.Forum
    tracker: tracker.Tracker
    cms: cms.Cms


def build_site(seed: int) -> Site:
    """The site of ``seed``."""
    rng = random.Random(f"web site {seed}")
    user = rng.choice(words()["people"])
    return Site(
        user, shop.make_shop(rng), forum.make_forum(rng, user), tracker.make_tracker(rng, user), cms.make_cms(rng, user)
    )


def copy_site(site: Site) -> Site:
    """A site of its own; by way of pickle, which takes a tenth of ``copy.deepcopy``'s time."""
    copied: Site = pickle.loads(pickle.dumps(site, pickle.HIGHEST_PROTOCOL))
    return copied


class SiteBackend:
    """Answers a browser's requests from a site's state."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def request(self, method: str, path: str, fields: Fields) -> Page:
        """The page at ``path``; what a form cannot mean gives a page that says so, and changes nothing."""
        address = urlsplit(path)
        parts = [unquote(part) for part in address.path.split("/") if part]
        if method == "post":
            then = self._act(parts, dict(fields))
            if then is None:
                return _problem(path, 400, "This could not be done. Check what you filled in.")
            return self.request("get", then, ())
        return self._show(path, parts, dict(parse_qsl(address.query)))

    def local(self, address: str) -> str | None:
        """Addresses of this site begin with one slash."""
        try:
            parts = urlsplit(address)
        except ValueError:
            return None
        own = not parts.scheme and not parts.netloc and parts.path.startswith("/")
        return parts.path + (f"?{parts.query}" if parts.query else "") if own else None

    def _act(self, parts: list[str], fields: dict[str, str]) -> str | None:
        site, rest = self._site, parts[1:]
        match parts[:1]:
            case ["shop"]:
                return shop.act(site.shop, rest, fields)
            case ["forum"]:
                return forum.act(site.forum, rest, fields)
            case ["tracker"]:
                return tracker.act(site.tracker, rest, fields)
            case ["cms"]:
                return cms.act(site.cms, rest, fields)
        return None

    def _show(self, path: str, parts: list[str], query: dict[str, str]) -> Page:
        site, rest = self._site, parts[1:]
        page = _with_menu(Page(path, "Home" if not parts else parts[0].capitalize()))
        match parts[:1]:
            case []:
                page.text(f"Welcome back, {site.user}.")
                found = True
            case ["shop"]:
                found = shop.show(site.shop, rest, query, page)
            case ["forum"]:
                found = forum.show(site.forum, rest, page)
            case ["tracker"]:
                found = tracker.show(site.tracker, rest, page)
            case ["cms"]:
                found = cms.show(site.cms, rest, page)
            case _:
                found = False
        return page if found else _problem(path, 404, "There is no such page.")


def _with_menu(page: Page) -> Page:
    """The links every page begins with."""
    page.link("Home", "/")
    for name, path in SECTIONS:
        page.link(name, path)
    return page


def _problem(path: str, status: int, text: str) -> Page:
    page = _with_menu(Page(path, f"Error {status}"))
    page.text(text)
    return page
