"""A large catalogue in a database file that is made once and that all processes share.

Full-text search is SQLite's (FTS5), ranked by BM25 with the constants of :mod:`rllib_lmgame.envs.support.bm25`.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import size_text
from rllib_lmgame.downloads.hub import check_room
from rllib_lmgame.downloads.places import data_root
from rllib_lmgame.envs.games.web.webshop import loader
from rllib_lmgame.envs.games.web.webshop.products import FUNCTION_WORDS, RESULTS_FOUND, Catalogue, Goal, Product
from rllib_lmgame.envs.support.bm25 import MAX_QUERY_WORDS, words_of

FORM = 1
"""Of the files; another one is made anew."""

LARGE = 64 * 2**20
"""Bytes from which on a catalogue is not held in memory."""

FOLDER = ".indexes"
TABLES = """
CREATE TABLE product (number INTEGER PRIMARY KEY, asin TEXT UNIQUE, content TEXT);
CREATE TABLE goal (number INTEGER PRIMARY KEY, asin TEXT, content TEXT);
CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='unicode61 remove_diacritics 0');
CREATE TEMP TABLE attribute (asin TEXT PRIMARY KEY, content TEXT);
"""
Row = TypeVar("Row")


class _Rows(Sequence[Row], Generic[Row]):
    """Rows of a table, each read when it is asked for."""

    def __init__(self, count: int, read: Callable[[int], Row]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self._read(number) for number in range(self._count)[index]]
        return self._read(range(self._count)[index])


class Shelf:
    """A catalogue as :class:`~.products.Catalogue`, of which nothing is in memory.

    Attributes:
        products: In the order of the file.
        wishes: Goals of the data set, their price limits still to be drawn.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        self._alone = threading.Lock()
        (products,), (goals,) = (self._one(f"SELECT COUNT(*) FROM {table}") for table in ("product", "goal"))
        self.products: Sequence[Product] = _Rows(products, self._product)
        self.wishes: Sequence[Goal] = _Rows(goals, self._goal)

    def search(self, keywords: str) -> list[Product]:
        """The products that fit best, at most ``RESULTS_FOUND``; words that say nothing are not looked for."""
        words = [word for word in dict.fromkeys(words_of(keywords)) if word not in FUNCTION_WORDS][:MAX_QUERY_WORDS]
        if not words:
            return []
        query = " OR ".join(f'"{word}"' for word in words)
        with self._alone:
            found = self._connection.execute(
                "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?", (query, RESULTS_FOUND)
            ).fetchall()
        return [self._product(number) for (number,) in found]

    def _one(self, query: str, *values: Any) -> tuple[Any, ...]:
        with self._alone:
            return self._connection.execute(query, values).fetchone()

    def _product(self, number: int) -> Product:
        return _product_from(self._one("SELECT content FROM product WHERE number = ?", number)[0])

    def _goal(self, number: int) -> Goal:
        asin, content = self._one("SELECT asin, content FROM goal WHERE number = ?", number)
        said = json.loads(content)
        product = _product_from(self._one("SELECT content FROM product WHERE asin = ?", asin)[0])
        values = {**said, "attributes": tuple(said["attributes"]), "options": tuple(said["options"])}
        return Goal(product=product, **values)


def catalogue_of(
    data: str, attributes_data: str | None, goals_data: str | None, num_products: int | None
) -> Catalogue | Shelf:
    """Products and goals of the files: in memory, made once per process; of a large catalogue in a file, made once per
    machine. See :func:`~.loader.load_catalogue`.
    """
    file = Path(data).expanduser()
    large = file.is_file() and file.stat().st_size >= LARGE
    return (_shelf if large else loader.load_catalogue)(data, attributes_data, goals_data, num_products)


def _shelf(data: str, attributes_data: str | None, goals_data: str | None, num_products: int | None) -> Shelf:
    """The first process makes the database, the others wait for it."""
    files = [Path(file).expanduser().resolve() for file in (data, attributes_data, goals_data) if file]
    about = [FORM, num_products, [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]]
    path = data_root() / FOLDER / f"webshop-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                size = files[0].stat().st_size
                check_room(path.parent, size, f"the search index of {data}")
                print(f"note: making {path} of {data} ({size_text(size)}), once", file=sys.stderr)
                _make(path, data, attributes_data, goals_data, num_products)
        return Shelf(path)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError("env_config.data", f"the search index {path} cannot be made or read: {error}") from None


def _make(path: Path, data: str, attributes_data: str | None, goals_data: str | None, num_products: int | None) -> None:
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    connection = sqlite3.connect(part)
    try:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + TABLES)
        connection.executemany(
            "INSERT OR REPLACE INTO attribute VALUES (?, ?)",
            ((asin, json.dumps(value)) for asin, value in loader.raw_attributes(attributes_data)),
        )
        human = loader.human_wishes(goals_data) if goals_data else None
        wishes: list[Goal] = []
        products = goals = 0
        for product, attributes in _products(connection, data, num_products):
            connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (products, product.searched_text))
            products += 1
            if human is not None:
                wishes += loader.human_goals(product, human.get(product.asin))
            else:
                goals = _add_goals(connection, goals, loader.written_goals(product, attributes))
        goals = _add_goals(connection, goals, loader.in_sessions(wishes))
        loader.check_wishes(goals, products, data, attributes_data, goals_data)
        connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        connection.commit()
    except BaseException:
        connection.close()
        part.unlink(missing_ok=True)
        raise
    connection.close()
    part.replace(path)


def _add_goals(connection: sqlite3.Connection, number: int, goals: Iterable[Goal]) -> int:
    """Put goals behind the ``number`` that are there; gives how many there are then."""
    for goal in goals:
        said = {
            "instruction": goal.instruction,
            "attributes": goal.attributes,
            "options": goal.options,
            "price_limit": goal.price_limit,
            "session": goal.session,
        }
        connection.execute("INSERT INTO goal VALUES (?, ?, ?)", (number, goal.product.asin, json.dumps(said)))
        number += 1
    return number


def _products(
    connection: sqlite3.Connection, data: str, num_products: int | None
) -> Iterator[tuple[Product, dict[str, Any]]]:
    """Products that are put into the database, each once, with its record of the attributes file."""
    number = 0
    for asin, where, record in loader.raw_products(data, num_products):
        row = connection.execute("SELECT content FROM attribute WHERE asin = ?", (asin,)).fetchone()
        attributes = json.loads(row[0]) if row else {}
        product = loader.product_of(record, attributes.get("attributes") or [], where)
        content = json.dumps(dataclasses.asdict(product))
        added = connection.execute("INSERT OR IGNORE INTO product VALUES (?, ?, ?)", (number, asin, content))
        if added.rowcount:
            number += 1
            yield product, attributes


def _product_from(content: str) -> Product:
    said = json.loads(content)
    said["options"] = {name: tuple(values) for name, values in said["options"].items()}
    for name in ("categories", "attributes", "features", "reviews"):
        said[name] = tuple(said[name])
    return Product(**said)
