"""A shopper who reads what is on the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rllib_lmgame.envs.games.web.webshop.pages import BACK, BUY, NEXT, PREVIOUS, Page, option_labels
from rllib_lmgame.envs.games.web.webshop.products import FUNCTION_WORDS, Goal, Product, same_text

PAGES_READ = 3
ATTRIBUTES = "attributes"
NOT_KEYWORDS = re.compile(r"[^\w\s.'&-]+")
FILLERS = FUNCTION_WORDS | {
    "am", "are", "buy", "color", "find", "flavor", "i", "looking", "me", "need", "please", "qualities", "scent", "size",
    "style", "these",
}  # fmt: skip


@dataclass
class Seen:
    """What the player has seen so far.

    Attributes:
        opened: Products whose page was open, by number.
        attributes_of: Products whose attributes were read.
    """

    opened: set[str] = field(default_factory=set)
    attributes_of: set[str] = field(default_factory=set)

    def look(self, page: Page) -> None:
        """Remember the page."""
        if page.product is not None:
            self.opened.add(page.product.asin)
            if page.sub_page == ATTRIBUTES.capitalize():
                self.attributes_of.add(page.product.asin)


def keywords(goal: Goal) -> str:
    """The instruction as a search: its words without the price and without those every instruction has."""
    words = NOT_KEYWORDS.sub(" ", goal.instruction).split()
    return " ".join(word for word in words if word.lower() not in FILLERS) or "anything"


def next_moves(page: Page, goal: Goal, seen: Seen, text: str) -> list[str]:
    """Moves of the next reply, up to where something new must be read.

    The instruction's words are searched for, and the first product whose title and price fit is opened. Its options are
    compared with those wanted, and what the title does not say about the attributes is read on their page.

    Args:
        text: Words to search for.
    """
    if page.results is None:
        return [f"search[{text}]"]
    if page.product is None:
        return _choose(page, goal, seen)
    up = [PREVIOUS] if page.sub_page else []
    verdict = _judge(page.product, goal, page.product.asin in seen.attributes_of)
    if verdict == "buy":
        return [_click(move) for move in (*up, *_missing(page.product, goal, page.chosen), BUY)]
    if verdict == "read":
        return [_click(ATTRIBUTES)]
    return [*(_click(move) for move in (*up, PREVIOUS)), *_choose(page, goal, seen)]


def _judge(product: Product, goal: Goal, attributes_read: bool) -> str:
    if product.price > goal.price_limit or not _offers(product, goal):
        return "leave"
    title = product.title.lower()
    if all(attribute in title for attribute in goal.attributes):
        return "buy"
    if not attributes_read:
        return "read"
    known = all(
        attribute in title or any(same_text(own, attribute) for own in product.attributes)
        for attribute in goal.attributes
    )
    return "buy" if known else "leave"


def _offers(product: Product, goal: Goal) -> bool:
    return product.query == goal.product.query and len(_matches(product, goal)) == len(goal.options)


def _matches(product: Product, goal: Goal) -> dict[str, str]:
    """Value to choose by option name, as far as the product has what is wanted."""
    return {name: value for name, values in product.options.items() for value in values if value in goal.options}


def _missing(product: Product, goal: Goal, chosen: Mapping[str, str]) -> list[str]:
    """Option texts still to click."""
    wanted = _matches(product, goal)
    labels = {pair: label for label, pair in option_labels(product).items()}
    return [labels[pair] for pair in wanted.items() if chosen.get(pair[0]) != pair[1]]


def _choose(page: Page, goal: Goal, seen: Seen) -> list[str]:
    """Open the first product of the page that may fit, or turn the page."""
    fits = [
        product
        for product in page.shown
        if product.asin not in seen.opened
        and product.price <= goal.price_limit
        and goal.product.query in product.title.lower()
    ]
    if fits:
        return [_click(fits[0].asin)]
    if not page.is_last and page.number < PAGES_READ:
        return [_click(NEXT)]
    return [_click(BACK)]


def _click(text: str) -> str:
    return f"click[{text.lower()}]"
