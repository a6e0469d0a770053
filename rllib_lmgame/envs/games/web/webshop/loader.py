"""WebShop's own files: ``items_shuffle*.json`` and the attributes and instructions that belong to it.

The catalogue is one JSON array of products, the other two are JSON objects by product number:

* ``items_ins_v2*.json``: ``{asin: {"attributes": [...], "instruction": "...", "instruction_attributes": [...]}}``;
* ``items_human_ins.json``: ``{asin: [{"instruction": "...", "instruction_attributes": [...], "instruction_options":
  [...]}, ...]}``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.web.webshop.products import NO_LIMIT, Catalogue, Goal, Product
from rllib_lmgame.envs.support.datasets import check_fields, readable
from rllib_lmgame.envs.support.json_stream import stream_array, stream_object

ASIN_LENGTH = 10
DEFAULT_PRICE = 100.0
LONGEST_TEXT = 4_000
PRODUCT_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "asin": str,
    "name": str,
    "query": str,
    "product_category": str,
}
KEPT = (*PRODUCT_FIELDS, "pricing", "full_description", "small_description", "customization_options")
SESSION_SEED = 233
"""With which the published program shuffles its goals."""

AMOUNT = re.compile(r"\d[\d,]{0,15}(?:\.\d{1,6})?", re.ASCII)


@lru_cache(maxsize=2)
def load_catalogue(
    data: str, attributes_data: str | None, goals_data: str | None, num_products: int | None
) -> Catalogue:
    """Products and goals of the files; made once per process.

    Args:
        data: ``items_shuffle*.json``.
        attributes_data: ``items_ins_v2*.json``; its instructions are the goals if there is no ``goals_data``.
        goals_data: ``items_human_ins.json``.
        num_products: Products read, from the top (the file is shuffled); ``None`` reads all.

    Raises: ConfigError: for a file that cannot be used; the message names file and record.
    """
    raw: dict[str, tuple[str, dict[str, Any]]] = {}
    for asin, where, record in raw_products(data, num_products):
        raw.setdefault(asin, (where, record))
    attributes = {asin: value for asin, value in raw_attributes(attributes_data) if asin in raw}
    products = {
        asin: product_of(record, attributes.get(asin, {}).get("attributes", []), where)
        for asin, (where, record) in raw.items()
    }
    human = human_wishes(goals_data) if goals_data else None
    wishes = [
        goal
        for asin, product in products.items()
        for goal in (
            written_goals(product, attributes.get(asin)) if human is None else human_goals(product, human.get(asin))
        )
    ]
    check_wishes(len(wishes), len(products), data, attributes_data, goals_data)
    return Catalogue(list(products.values()), wishes if human is None else in_sessions(wishes))


def check_wishes(wishes: int, products: int, data: str, attributes_data: str | None, goals_data: str | None) -> None:
    """Raises: ConfigError: there is no goal for any product."""
    if not wishes:
        files = " and ".join(filter(None, (attributes_data, goals_data))) or "attributes_data or goals_data"
        raise ConfigError(
            "env_config.data",
            f"no goal for the {products} products of {data}; {files} must hold instructions for some of them",
        )


def in_sessions(wishes: list[Goal]) -> list[Goal]:
    """Wishes of people in the order of the published program's sessions: those of the catalogue, shuffled."""
    order = list(range(len(wishes)))
    random.Random(SESSION_SEED).shuffle(order)
    return [replace(wishes[row], session=session) for session, row in enumerate(order)]


def raw_products(path: str, limit: int | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Product number, place in words and record of each product of the file; odd numbers are left out, as in WebShop.
    A number may come again; the first one counts.
    """
    found = False
    for count, (where, record) in enumerate(stream_array(path, "env_config.data")):
        if count == limit:
            break
        if not isinstance(record, dict):
            raise ConfigError("env_config.data", f"{where}: expected a JSON object, got {type(record).__name__}")
        check_fields(record, PRODUCT_FIELDS, "env_config.data", where)
        asin = record["asin"].upper()
        if len(asin) <= ASIN_LENGTH and asin != "NAN":
            found = True
            yield asin, where, {name: record.get(name) for name in KEPT}
    if not found:
        raise ConfigError("env_config.data", f"{path} holds no product")


def raw_attributes(path: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Product number and record of each entry of the attributes file; the record has its place in words as ``where``.

    Raises: ConfigError: names the entry that is none.
    """
    key = "env_config.attributes_data"
    for place, asin, value in stream_object(path, key) if path else ():
        where = f"{place} ({asin})"
        if not isinstance(value, dict):
            raise ConfigError(key, f"{where}: expected a JSON object, got {type(value).__name__}")
        _texts(value.get("attributes"), "attributes", key, where)
        yield asin.upper(), {**value, "where": where}


def product_of(record: dict[str, Any], attributes: list[str], where: str) -> Product:
    price, tag = read_price(record["pricing"], where)
    features = record["small_description"]
    lines = features if isinstance(features, list) else [features]
    return Product(
        asin=record["asin"].upper(),
        title=readable(record["name"])[:LONGEST_TEXT],
        query=record["query"].lower().strip(),
        categories=tuple(part.strip() for part in record["product_category"].split("›")),
        price=price,
        price_tag=tag,
        options=_options(record["customization_options"], where),
        attributes=tuple(attributes),
        description=str(record["full_description"] or "")[:LONGEST_TEXT],
        features=tuple(str(line)[:LONGEST_TEXT] for line in lines if line),
    )


def read_price(text: Any, where: str) -> tuple[float, str]:
    """Price and price tag of ``$12.99`` or ``$2.99 to $7.99``; of a range the mean counts (WebShop draws one anew in
    every run).

    Raises: ConfigError: if there is a text without an amount.
    """
    if not text:
        return DEFAULT_PRICE, f"${DEFAULT_PRICE:.2f}"
    amounts = [float(amount.replace(",", "")) for amount in AMOUNT.findall(str(text))[:2]]
    if not amounts:
        raise ConfigError("env_config.data", f"{where}: pricing is {text!r}; expected an amount such as '$12.99'")
    return sum(amounts) / len(amounts), " to ".join(f"${amount:.2f}" for amount in amounts)


def _options(raw: Any, where: str) -> dict[str, tuple[str, ...]]:
    """Values by option name, both in lower case."""
    if not raw:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(
            "env_config.data", f"{where}: customization_options is {type(raw).__name__}; expected an object of lists"
        )
    options = {}
    for name, values in raw.items():
        if values is None:
            continue
        if not isinstance(values, list) or not all(
            isinstance(value, dict) and isinstance(value.get("value"), str) for value in values
        ):
            raise ConfigError(
                "env_config.data", f"{where}: option {name!r} must be a list of objects with a text 'value'"
            )
        options[name.lower()] = tuple(
            dict.fromkeys(
                readable(value["value"].strip().replace("||", "|").replace("/", " | ").lower()) for value in values
            )
        )
    return options


def human_wishes(path: str) -> dict[str, list[dict[str, Any]]]:
    """Wishes of people by product number, each checked, with its place in words as ``where``.

    Raises: ConfigError: names the entry that is wrong.
    """
    key, found = "env_config.goals_data", {}
    for place, asin, wishes in stream_object(path, key):
        where = f"{place} ({asin})"
        if not isinstance(wishes, list) or not all(isinstance(wish, dict) for wish in wishes):
            raise ConfigError(key, f"{where}: expected a list of objects")
        for wish in wishes:
            check_fields(
                wish,
                {"instruction": str, "instruction_attributes": list, "instruction_options": (list, dict)},
                key,
                where,
            )
        found[asin.upper()] = [{**wish, "where": where} for wish in wishes]
    return found


def human_goals(product: Product, wishes: list[dict[str, Any]] | None) -> Iterator[Goal]:
    """Goals of the wishes for a product; WebShop leaves out those without attributes."""
    key = "env_config.goals_data"
    for wish in wishes or ():
        asked = _texts(wish["instruction_attributes"], "instruction_attributes", key, wish["where"])
        options = wish["instruction_options"]
        values = _texts(
            list(options.values()) if isinstance(options, dict) else options, "instruction_options", key, wish["where"]
        )
        if asked:
            yield Goal(readable(wish["instruction"]).strip("."), product, asked, values, NO_LIMIT)


def written_goals(product: Product, record: Mapping[str, Any] | None) -> Iterator[Goal]:
    """The goal of the attributes file for a product: attributes only, options are drawn when a level is."""
    if record and record.get("instruction") and record.get("instruction_attributes"):
        asked = _texts(
            record["instruction_attributes"], "instruction_attributes", "env_config.attributes_data", record["where"]
        )
        yield Goal(readable(str(record["instruction"])).strip("."), product, asked, (), NO_LIMIT)


def _texts(values: Any, name: str, key: str, where: str) -> tuple[str, ...]:
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(key, f"{where}: {name} must be a list of texts")
    return tuple(map(readable, values))
