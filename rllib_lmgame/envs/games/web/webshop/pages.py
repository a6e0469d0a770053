"""The shop's pages: what is shown, and what can be clicked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rllib_lmgame.base.text import one_line
from rllib_lmgame.envs.games.web.webshop.products import Product

SEP = " [SEP] "
PAGE_SIZE = 10
LONGEST_PAGE = 8_000
"""Characters of a page that are shown, so that the actions below it always fit."""

BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
BUTTONS = frozenset(name.lower() for name in (BACK, NEXT, PREVIOUS, BUY, *SUB_PAGES))


@dataclass(frozen=True)
class Page:
    """Where the player is.

    Attributes:
        results: What was found; ``None`` before the search.
        number: Page of the results, from 1.
        product: Product that is open.
        sub_page: Part of the product's page that is open, one of ``SUB_PAGES``.
        chosen: Values chosen for the open product, by option name.
        bought: The purchase was made.
    """

    results: tuple[Product, ...] | None = None
    number: int = 1
    product: Product | None = None
    sub_page: str | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)
    bought: bool = False

    @property
    def shown(self) -> tuple[Product, ...]:
        """Products on this page of the results."""
        return (self.results or ())[(self.number - 1) * PAGE_SIZE : self.number * PAGE_SIZE]

    @property
    def is_last(self) -> bool:
        """There are no further results."""
        return self.number * PAGE_SIZE >= len(self.results or ())


def option_labels(product: Product) -> dict[str, tuple[str, str]]:
    """Option name and value by the text to click: the value, or ``name: value`` where the value alone could mean
    something else.
    """
    values = [value for values in product.options.values() for value in values]
    pairs = [(name, value) for name, values_ in product.options.items() for value in values_]
    return {
        (f"{name}: {value}" if value in BUTTONS or values.count(value) > 1 else value): (name, value)
        for name, value in pairs
    }


def clickables(page: Page) -> list[str]:
    """Texts that can be clicked, lower case, in the order of the page."""
    if page.bought or page.results is None:
        return []
    if page.product is None:
        moves = ([] if page.is_last else [NEXT.lower()]) + ([PREVIOUS.lower()] if page.number > 1 else [])
        return [BACK.lower(), *moves, *(product.asin.lower() for product in page.shown)]
    if page.sub_page:
        return [BACK.lower(), PREVIOUS.lower()]
    return [
        BACK.lower(),
        PREVIOUS.lower(),
        *(name.lower() for name in SUB_PAGES),
        BUY.lower(),
        *option_labels(page.product),
    ]


def clicked(page: Page, text: str) -> Page:
    """The page after a click on one of :func:`clickables` (buying is the game's business)."""
    if text == BACK.lower():
        return Page()
    if page.product is None:
        if text in (NEXT.lower(), PREVIOUS.lower()):
            return replace(page, number=page.number + (1 if text == NEXT.lower() else -1))
        product = next(product for product in page.shown if product.asin.lower() == text)
        return replace(page, product=product, chosen={})
    if text == PREVIOUS.lower():
        return replace(page, sub_page=None) if page.sub_page else replace(page, product=None, chosen={})
    if text.capitalize() in SUB_PAGES:
        return replace(page, sub_page=text.capitalize())
    name, value = option_labels(page.product)[text]
    return replace(page, chosen={**page.chosen, name: value})


def page_text(page: Page, instruction: str) -> str:
    """The page in WebShop's plain text form, parts separated by ``[SEP]``."""
    if page.bought:
        return "Thank you for shopping with us!"
    head = ["Instruction:", instruction]
    if page.results is None:
        return SEP.join(["WebShop", *head, "Search"])
    if page.product is None:
        parts = _results(page)
    elif page.sub_page:
        parts = [PREVIOUS, *(_sub_page(page.product, page.sub_page) or ["None"])]
    else:
        parts = _item(page.product, page.chosen)
    return one_line(SEP.join([*head, BACK, *parts]))[:LONGEST_PAGE]


def _results(page: Page) -> list[str]:
    parts = [f"Page {page.number} (Total results: {len(page.results or ())})"]
    parts += [] if page.is_last else [NEXT]
    parts += [PREVIOUS] if page.number > 1 else []
    return parts + [part for product in page.shown for part in (product.asin, product.title, product.price_tag)]


def _item(product: Product, chosen: Mapping[str, str]) -> list[str]:
    parts = [PREVIOUS]
    for name, values in product.options.items():
        parts += [name, *(f"{value} (chosen)" if chosen.get(name) == value else value for value in values)]
    return [*parts, product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}", *SUB_PAGES, BUY]


def _sub_page(product: Product, name: str) -> list[str]:
    if name == "Description":
        return [product.description] if product.description else []
    return list({"Features": product.features, "Reviews": product.reviews, "Attributes": product.attributes}[name])
