"""WebShop's own files: ``items_shuffle*.json`` and the attributes and instructions that belong to it.

The catalogue is one JSON array of products, the other two are JSON objects by product number:

* ``items_ins_v2*.json``: ``{asin: {"attributes": [...], "instruction": "...", "instruction_attributes": [...]}}``;
* ``items_human_ins.json``: ``{asin: [{"instruction": "...", "instruction_attributes": [...], "instruction_options":
  [...]}, ...]}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rllib_lmgame.envs.games.web.webshop.products import NO_LIMIT, Catalogue, Goal, Product
from rllib_lmgame.envs.support.datasets import check_fields, readable
from rllib_lmgame.envs.support.json_stream import stream_array, stream_object
from rllib_lmgame.errors import ConfigError

ASIN_LENGTH = 10
DEFAULT_PRICE = 100.0
LONGEST_TEXT = 4_000
PRODUCT_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "asin": str,
    "name": str,
    "query": str,
    "product_category": str,
}
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

    Raises:
        ConfigError: for a file that cannot be used; the message names file and record.
    """
    raw = _raw_products(data, num_products)
    attributes = _attributes(attributes_data, raw)
    products = {
        asin: _product(record, attributes.get(asin, {}).get("attributes", []), where)
        for asin, (where, record) in raw.items()
    }
    wishes = _human_goals(goals_data, products) if goals_data else _written_goals(attributes, products)
    if not wishes:
        files = " and ".join(filter(None, (attributes_data, goals_data))) or "attributes_data or goals_data"
        raise ConfigError(
            "env_config.data",
            f"no goal for the {len(products)} products of {data}; {files} must hold instructions for some of them",
        )
    return Catalogue(list(products.values()), wishes)


def _raw_products(path: str, limit: int | None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Records by product number, the first of each; odd numbers are left out, as in WebShop."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for count, (where, record) in enumerate(stream_array(path, "env_config.data")):
        if count == limit:
            break
        if not isinstance(record, dict):
            raise ConfigError("env_config.data", f"{where}: expected a JSON object, got {type(record).__name__}")
        check_fields(record, PRODUCT_FIELDS, "env_config.data", where)
        asin = record["asin"].upper()
        if len(asin) <= ASIN_LENGTH and asin != "NAN":
            kept = (
                "asin",
                "name",
                "query",
                "product_category",
                "pricing",
                "full_description",
                "small_description",
                "customization_options",
            )
            found.setdefault(asin, (where, {name: record.get(name) for name in kept}))
    if not found:
        raise ConfigError("env_config.data", f"{path} holds no product")
    return found


def _attributes(path: str | None, known: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for where, asin, value in stream_object(path, "env_config.attributes_data") if path else ():
        if asin.upper() in known:
            if not isinstance(value, dict):
                raise ConfigError(
                    "env_config.attributes_data",
                    f"{where} ({asin}): expected a JSON object, got {type(value).__name__}",
                )
            _texts(value.get("attributes"), "attributes", "env_config.attributes_data", f"{where} ({asin})")
            found[asin.upper()] = {**value, "where": f"{where} ({asin})"}
    return found


def _product(record: dict[str, Any], attributes: list[str], where: str) -> Product:
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

    Raises:
        ConfigError: if there is a text without an amount.
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


def _human_goals(path: str, products: Mapping[str, Product]) -> list[Goal]:
    key, goals = "env_config.goals_data", []
    for place, asin, wishes in stream_object(path, key):
        if asin.upper() not in products:
            continue
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
            asked = _texts(wish["instruction_attributes"], "instruction_attributes", key, where)
            options = wish["instruction_options"]
            values = _texts(
                list(options.values()) if isinstance(options, dict) else options, "instruction_options", key, where
            )
            if asked:  # WebShop leaves out instructions without attributes.
                goals.append(
                    Goal(readable(wish["instruction"]).strip("."), products[asin.upper()], asked, values, NO_LIMIT)
                )
    return goals


def _written_goals(attributes: Mapping[str, dict[str, Any]], products: Mapping[str, Product]) -> list[Goal]:
    """Goals of the attributes file: attributes only, options are drawn when a level is."""
    goals = []
    for asin, record in attributes.items():
        if record.get("instruction") and record.get("instruction_attributes"):
            asked = _texts(
                record["instruction_attributes"],
                "instruction_attributes",
                "env_config.attributes_data",
                record["where"],
            )
            goals.append(Goal(readable(str(record["instruction"])).strip("."), products[asin], asked, (), NO_LIMIT))
    return goals


def _texts(values: Any, name: str, key: str, where: str) -> tuple[str, ...]:
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(key, f"{where}: {name} must be a list of texts")
    return tuple(map(readable, values))
