"""The generated shop: products made from the lists of this package, goals drawn from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from rllib_lmgame.envs.games.web.webshop.products import Catalogue, Goal, Product, draw_price_limit
from rllib_lmgame.envs.support.datasets import package_lines, package_lists

ASIN_CHARACTERS = "0123456789ABCDEFGHJKLMNPQRSTVWXYZ"
FEWEST_ATTRIBUTES, MOST_ATTRIBUTES, MOST_ASKED = 3, 5, 3
FEWEST_VALUES, MOST_VALUES = 3, 6
WORDS = "webshop_words.txt"


@dataclass(frozen=True)
class ProductType:
    """One line of ``webshop_types.txt``: options are pairs of option name and list of values."""

    categories: tuple[str, ...]
    price_range: tuple[int, int]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.categories[-1]


@cache
def product_types() -> tuple[ProductType, ...]:
    """What the shop has kinds of."""
    lists = package_lists(WORDS)
    kinds = []
    for line in package_lines("webshop_types.txt"):
        path, prices, options, attributes = (part.strip() for part in line.split("|"))
        low, high = map(int, prices.split("-"))
        offered = tuple((name.strip().split("/")[0], lists[f"option/{name.strip()}"]) for name in options.split(","))
        kinds.append(
            ProductType(tuple(map(str.strip, path.split("›"))), (low, high), offered, lists[f"attributes/{attributes}"])
        )
    return tuple(kinds)


@lru_cache(maxsize=4)
def generated_catalogue(num_products: int, seed: int) -> Catalogue:
    """The shop of ``seed``; the same on every machine, made once per process."""
    rng = random.Random(f"webshop catalogue {seed}")
    kinds = product_types()
    asins = _asins(rng, num_products)
    return Catalogue([_product(rng, kinds[i % len(kinds)], asin) for i, asin in enumerate(asins)])


def generated_goals(catalogue: Catalogue, rng: random.Random) -> Iterator[Goal]:
    """Endless goals: some of a product's attributes, one value of each option, a price limit."""
    forms = package_lists(WORDS)["instruction"]
    while True:
        product = rng.choice(catalogue.products)
        asked = tuple(rng.sample(product.attributes, rng.randint(1, min(MOST_ASKED, len(product.attributes)))))
        chosen = {name: rng.choice(values) for name, values in product.options.items()}
        wish = rng.choice(forms).format(attributes=", ".join(asked), type=product.query)
        options = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
        text = f"{wish} with {options}" if options else wish
        yield Goal(text, product, asked, tuple(chosen.values()), draw_price_limit(rng, product.price))


def _product(rng: random.Random, kind: ProductType, asin: str) -> Product:
    lists = package_lists(WORDS)
    brand = rng.choice(lists["brand"])
    attributes = tuple(rng.sample(kind.attributes, rng.randint(FEWEST_ATTRIBUTES, MOST_ATTRIBUTES)))
    titled = attributes[: rng.randint(1, len(attributes))]
    price = rng.randint(*kind.price_range) + rng.choice((-0.01, -0.51, 0.0))
    features = [
        _sentence(rng.choice(lists["feature"]).format(attribute=attribute))
        for attribute in rng.sample(attributes, len(attributes))
    ]
    return Product(
        asin=asin,
        title=", ".join((f"{brand} {kind.name.title()}", *(attribute.capitalize() for attribute in titled))),
        query=kind.name,
        categories=kind.categories,
        price=price,
        price_tag=f"${price:.2f}",
        options={name: _some_values(rng, values) for name, values in kind.options},
        attributes=attributes,
        description=rng.choice(lists["description"]).format(brand=brand, type=kind.name),
        features=tuple(features),
        reviews=tuple(rng.sample(lists["review"], rng.randint(0, 3))),
        rating=f"{rng.randint(25, 50) / 10:.1f}",
    )


def _some_values(rng: random.Random, values: tuple[str, ...]) -> tuple[str, ...]:
    """Some of the values, in the order of the list."""
    kept = sorted(
        rng.sample(range(len(values)), rng.randint(min(FEWEST_VALUES, len(values)), min(MOST_VALUES, len(values))))
    )
    return tuple(values[position] for position in kept)


def _asins(rng: random.Random, count: int) -> list[str]:
    """Different product numbers: B0 and eight characters."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["B0" + "".join(rng.choices(ASIN_CHARACTERS, k=8))] = None
    return list(found)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
