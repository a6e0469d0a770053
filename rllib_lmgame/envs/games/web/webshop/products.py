"""Products, goals, and what a purchase is worth."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rllib_lmgame.envs.support.bm25 import BM25, words_of

RESULTS_FOUND = 50
"""Products a search returns at most (WebShop's ``SEARCH_RETURN_N``)."""

PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))
NO_LIMIT = 1_000_000.0
SAME_TEXT = 85
"""Two texts whose token-set ratio is above this count as the same (WebShop)."""

EXACT_OPTIONS = ("size",)
FUNCTION_WORDS = frozenset(
    [
        "a", "an", "and", "at", "by", "for", "from", "in", "is", "of", "on", "or", "s", "that", "the", "to", "with",
        "your",
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Product:
    """What the shop sells.

    Attributes:
        asin: Its number, upper case.
        title: Name on the pages.
        query: Product type; equal queries are the same type.
        categories: From the department down.
        price: In dollars, what the limit of a goal is compared with.
        price_tag: What the pages show.
        options: Values to choose from, by option name (``color``, ``size``).
        attributes: What it is, in short texts.
    """

    asin: str
    title: str
    query: str
    categories: tuple[str, ...]
    price: float
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    description: str = ""
    features: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()
    rating: str = "N.A."

    @cached_property
    def searched_text(self) -> str:
        """What the search index holds of it."""
        values = [value for values in self.options.values() for value in values]
        return " ".join((self.title, self.query, self.description, *self.features, *self.attributes, *values))

    @cached_property
    def prose(self) -> str:
        """Title, features and description in lower case; attributes are looked for here as well."""
        return "\n".join((self.title, " ".join(self.features), self.description)).lower()


@dataclass(frozen=True)
class Goal:
    """What shall be bought.

    Attributes:
        instruction: The wish in words, without the price limit.
        product: The product the wish was made from.
        attributes: Asked for.
        options: Values asked for.
        price_limit: In dollars; ``NO_LIMIT`` if there is none.
        session: Its number in the published program, of wishes of people.
    """

    instruction: str
    product: Product
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_limit: float
    session: int | None = None

    @property
    def text(self) -> str:
        """The instruction as the player reads it."""
        limit = "" if self.price_limit >= NO_LIMIT else f", and price lower than {self.price_limit:.2f} dollars"
        return self.instruction + limit


@dataclass
class Catalogue:
    """All products, and the goals that are given with them.

    Attributes:
        products: In the order of the search index.
        wishes: Goals of a data set, their price limits still to be drawn; empty for a generated catalogue.
    """

    products: list[Product]
    wishes: list[Goal] = field(default_factory=list)

    @cached_property
    def index(self) -> BM25:
        """The search index."""
        return BM25(product.searched_text for product in self.products)

    def search(self, keywords: str) -> list[Product]:
        """The products that fit best, at most ``RESULTS_FOUND``."""
        return [self.products[row] for row in self.index.search(keywords, RESULTS_FOUND)]


def draw_price_limit(rng: random.Random, price: float) -> float:
    """The higher of two of the next four multiples of ten dollars above ``price`` (WebShop's rule)."""
    above = [step for step in PRICE_STEPS if step > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


@dataclass(frozen=True)
class Score:
    """A purchase against a goal."""

    attributes: int
    options: int
    price: bool
    kind: float
    asked: int

    @property
    def reward(self) -> float:
        """``kind * (attributes + options + price) / (asked attributes + asked options + 1)``, in [0, 1] (WebShop,
        section 2.3).
        """
        return self.kind * self.met / self.asked

    @property
    def met(self) -> int:
        """How much of what was asked for was bought."""
        return self.attributes + self.options + self.price

    @property
    def perfect(self) -> bool:
        """Everything asked for was bought."""
        return self.kind == 1.0 and self.met == self.asked


def score(product: Product, chosen: Mapping[str, str], goal: Goal) -> Score:
    """What buying ``product`` with the options ``chosen`` (value by option name) is worth."""
    return Score(
        attributes=sum(has_attribute(product, attribute) for attribute in goal.attributes),
        options=matching_options(chosen, goal.options),
        price=product.price <= goal.price_limit,
        kind=type_score(product, goal.product),
        asked=len(goal.attributes) + len(goal.options) + 1,
    )


def has_attribute(product: Product, attribute: str) -> bool:
    """The attribute is on the product's list, or in its title, features or description."""
    return any(same_text(own, attribute) for own in product.attributes) or attribute.lower() in product.prose


def matching_options(chosen: Mapping[str, str], wanted: tuple[str, ...]) -> int:
    """How many of the values wanted were chosen; every choice serves one of them, so that the reward cannot exceed
    1.
    """
    left = dict(chosen)
    matched = 0
    for value in wanted:
        for name, pick in left.items():
            if pick.lower() == value.lower() or (name.lower() not in EXACT_OPTIONS and same_text(pick, value)):
                del left[name]
                matched += 1
                break
    return matched


def type_score(bought: Product, wanted: Product) -> float:
    """1 for the same type of product, 0.5, 0.1 or 0 for one ever less alike.

    WebShop's rule, with one difference: it looks at the share of the wanted title's *nouns*, found by a language model.
    Here all words but numbers and function words count, and since adjectives thin them out, products of the same
    ``query`` are not judged by them.
    """
    if bought.query == wanted.query:
        return 1.0
    words = title_words(wanted.title)
    shared = len(words & title_words(bought.title)) / len(words) if words else 0.2
    if shared == 0.0:
        return 0.0
    if shared < 0.1:
        return 0.1
    return 1.0 if len(set(bought.categories) & set(wanted.categories)) >= 2 or shared > 0.2 else 0.5


def title_words(title: str) -> set[str]:
    """Words that say what a title is about."""
    return {word for word in words_of(title) if word not in FUNCTION_WORDS and not word.isnumeric()}


def same_text(one: str, other: str) -> bool:
    """The texts share so many words that WebShop takes them for the same."""
    return token_set_ratio(one, other) > SAME_TEXT


def token_set_ratio(one: str, other: str) -> int:
    """Likeness of two texts in percent by their sets of words: shared words against each side, and the sides against
    each other.
    """
    left, right = set(words_of(one)), set(words_of(other))
    if not left or not right:
        return 0
    shared = " ".join(sorted(left & right))
    if shared and (left <= right or right <= left):
        return 100
    sides = [" ".join(filter(None, (shared, " ".join(sorted(own))))) for own in (left - right, right - left)]
    pairs = [(shared, sides[0]), (shared, sides[1]), (sides[0], sides[1])] if shared else [(sides[0], sides[1])]
    return max(round(100 * ratio(a, b)) for a, b in pairs)


def ratio(one: str, other: str) -> float:
    """Twice the longest common subsequence over both lengths; texts are cut at 200 characters."""
    one, other = one[:200], other[:200]
    if not one or not other:
        return 0.0
    above = [0] * (len(other) + 1)
    for character in one:
        row = [0]
        for column, across in enumerate(other):
            row.append(above[column] + 1 if character == across else max(above[column + 1], row[-1]))
        above = row
    return 2 * above[-1] / (len(one) + len(other))
