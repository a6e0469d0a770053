"""Questions with their gold queries: made from templates, or read from the files BIRD is published in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.code.bird.schemas import FIRST_YEAR, LAST_YEAR, SCHEMAS, Filled, filled
from rllib_lmgame.envs.support.datasets import category_in, once_per_file, readable
from rllib_lmgame.envs.support.json_stream import stream_records

FIELDS: dict[str, type | tuple[type, ...]] = {"question": str, "SQL": str, "db_id": str}
DATA, ROOT = "env_config.data", "env_config.db_root"


@dataclass(frozen=True)
class Task:
    """A question about a database.

    Attributes:
        db_id: The database.
        question: In words.
        sql: The gold query.
        schema: Its ``CREATE TABLE`` statements.
        path: File of the database; ``None`` for one of ours.
        difficulty: As BIRD's dev set says it.
    """

    db_id: str
    question: str
    sql: str
    schema: str
    path: str | None = None
    difficulty: str = ""


Family = Callable[[random.Random, Filled], tuple[str, str]]


def generated_tasks(rng: random.Random) -> Iterator[Task]:
    """Endless questions about the databases of this package."""
    names = sorted(SCHEMAS)
    while True:
        content = filled(rng.choice(names))
        question, sql = rng.choice(FAMILIES)(rng, content)
        yield Task(content.schema.db_id, question, sql, content.schema.ddl)


@once_per_file
def read_tasks(data: str, db_root: str, hint: bool = True) -> tuple[Task, ...]:
    """Questions of a file in BIRD's form, a JSON array or one object per line: ``question``, ``SQL`` and ``db_id``. Two
    keys may be left out: ``schema`` (else it is read from the database) and ``evidence`` (put before the question, if
    ``hint``).

    Raises:
        ConfigError: names the file and the line or record, or the database that is missing.
    """
    root = Path(db_root).expanduser()
    if not db_root or not root.is_dir():
        raise ConfigError(
            ROOT, f"{db_root!r} is no folder; give the one that holds <db_id>/<db_id>.sqlite for every db_id of {DATA}"
        )
    files: dict[str, str] = {}
    tasks = tuple(
        _read_task(record, where, root.resolve(), hint, files) for where, record in stream_records(data, FIELDS, DATA)
    )
    if not tasks:
        raise ConfigError(DATA, f"{data} holds no questions")
    return tasks


def _read_task(record: dict[str, Any], where: str, root: Path, hint: bool, files: dict[str, str]) -> Task:
    db_id = record["db_id"]
    if db_id not in files:
        files[db_id] = _database_of(db_id, where, root)
    evidence = record.get("evidence")
    question = f"{evidence} {record['question']}" if hint and isinstance(evidence, str) else record["question"]
    schema = record.get("schema")
    shown = readable(schema) if isinstance(schema, str) else ""
    difficulty = category_in(record, "difficulty")
    return Task(db_id, readable(question.strip()), readable(record["SQL"]), shown, files[db_id], difficulty)


def _database_of(db_id: str, where: str, root: Path) -> str:
    """File of a database. Raises: ConfigError: it is not there, or not below ``root``."""
    file = root / db_id / f"{db_id}.sqlite"
    try:
        inside, there = file.resolve().is_relative_to(root), file.is_file()
    except (OSError, ValueError) as error:  # Too long for a name of a file, or no text for one.
        raise ConfigError(DATA, f"{where}: db_id {db_id[:80]!r} names no database ({error})") from None
    if not inside:
        raise ConfigError(DATA, f"{where}: db_id {db_id!r} leads out of {root}")
    if not there:
        raise ConfigError(ROOT, f"{where} asks about {db_id!r}, but {file} does not exist")
    return str(file)


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def _count(rng: random.Random, content: Filled) -> tuple[str, str]:
    child = content.schema.child
    value = rng.choice(child.groups)
    return (
        f"How many {child.many} have the {child.group_phrase} '{value}'?",
        f"SELECT COUNT(*) FROM {child.name} WHERE {child.group} = {quoted(value)}",
    )


def _filtered(rng: random.Random, content: Filled) -> tuple[str, str]:
    parent = content.schema.parent
    bound, (word, sign) = rng.choice(content.parents)[3], rng.choice((("greater", ">"), ("less", "<")))
    return (
        f"Give the {parent.label} of all {parent.many} whose {parent.number_phrase} is {word} than {bound}.",
        f"SELECT {parent.label} FROM {parent.name} WHERE {parent.number} {sign} {bound}",
    )


def _extreme(rng: random.Random, content: Filled) -> tuple[str, str]:
    child = content.schema.child
    value, (word, function) = rng.choice(child.groups), rng.choice((("highest", "MAX"), ("lowest", "MIN")))
    where = f"{child.group} = {quoted(value)}"
    return (
        (
            f"Among the {child.many} with the {child.group_phrase} '{value}', which have the {word} "
            f"{child.number_phrase}? Give their {child.label}."
        ),
        f"SELECT {child.label} FROM {child.name} WHERE {where} "
        f"AND {child.number} = (SELECT {function}({child.number}) FROM {child.name} WHERE {where})",
    )


def _aggregate(rng: random.Random, content: Filled) -> tuple[str, str]:
    child = content.schema.child
    value = rng.choice(child.groups)
    word, function = rng.choice((("average", "AVG"), ("total", "SUM"), ("largest", "MAX"), ("smallest", "MIN")))
    return (
        f"What is the {word} {child.number_phrase} of the {child.many} with the {child.group_phrase} '{value}'?",
        f"SELECT {function}({child.number}) FROM {child.name} WHERE {child.group} = {quoted(value)}",
    )


def _groups(rng: random.Random, content: Filled) -> tuple[str, str]:
    schema = content.schema
    table = rng.choice((schema.parent, schema.child))
    year = rng.randint(FIRST_YEAR, LAST_YEAR)
    if table is schema.parent:
        low = rng.choice(content.parents)[3]
        condition, where = f" whose {table.number_phrase} is at least {low}", f"{table.number} >= {low}"
    else:
        condition, where = f" that {schema.date_phrase} in {year} or later", f"{schema.date} >= '{year}-01-01'"
    return (
        (
            f"Of the {table.many}{condition}, how many are there for each {table.group_phrase}? Give the "
            f"{table.group_phrase} and the number."
        ),
        f"SELECT {table.group}, COUNT(*) FROM {table.name} WHERE {where} GROUP BY {table.group}",
    )


def _belonging(rng: random.Random, content: Filled) -> tuple[str, str]:
    schema = content.schema
    parent, child = schema.parent, schema.child
    name = rng.choice(content.parents)[1]
    return (
        f"Give the {child.label} and the {child.number_phrase} of all {child.many} of the {parent.one} '{name}'.",
        f"SELECT c.{child.label}, c.{child.number} FROM {child.name} c JOIN {parent.name} p ON c.{schema.key} = p.id "
        f"WHERE p.{parent.label} = {quoted(name)}",
    )


def _sum_per_parent(rng: random.Random, content: Filled) -> tuple[str, str]:
    schema = content.schema
    parent, child = schema.parent, schema.child
    value = rng.choice(parent.groups)
    word, function = rng.choice((("total", "SUM"), ("average", "AVG"), ("largest", "MAX")))
    return (
        f"For each {parent.one} with the {parent.group_phrase} '{value}' that has any {child.many}: give the "
        f"{parent.label} and the {word} {child.number_phrase} of its {child.many}.",
        f"SELECT p.{parent.label}, {function}(c.{child.number}) FROM {parent.name} p JOIN {child.name} c ON "
        f"c.{schema.key} = p.id WHERE p.{parent.group} = {quoted(value)} GROUP BY p.id",
    )


def _at_least(rng: random.Random, content: Filled) -> tuple[str, str]:
    schema = content.schema
    parent, child = schema.parent, schema.child
    least, value = rng.randint(1, 3), rng.choice(child.groups)
    return (
        f"Give the {parent.label} of every {parent.one} that has at least {least} "
        f"{child.many if least > 1 else child.one} with the {child.group_phrase} '{value}'.",
        f"SELECT p.{parent.label} FROM {parent.name} p JOIN {child.name} c ON c.{schema.key} = p.id WHERE "
        f"c.{child.group} = {quoted(value)} GROUP BY p.id HAVING COUNT(*) >= {least}",
    )


def _missing(rng: random.Random, content: Filled) -> tuple[str, str]:
    schema = content.schema
    parent, child = schema.parent, schema.child
    year = rng.randint(FIRST_YEAR, LAST_YEAR)
    return (
        f"Give the {parent.label} of every {parent.one} that has no {child.many} that {schema.date_phrase} in {year}.",
        (
            f"SELECT {parent.label} FROM {parent.name} WHERE id NOT IN (SELECT {schema.key} FROM {child.name} WHERE "
            f"{schema.date} LIKE '{year}-%')"
        ),
    )


def _above_average(rng: random.Random, content: Filled) -> tuple[str, str]:
    child = content.schema.child
    value = rng.choice(child.groups)
    return (
        (
            f"How many {child.many} with the {child.group_phrase} '{value}' have a {child.number_phrase} above the "
            f"average over all {child.many}?"
        ),
        f"SELECT COUNT(*) FROM {child.name} WHERE {child.group} = {quoted(value)} "
        f"AND {child.number} > (SELECT AVG({child.number}) FROM {child.name})",
    )


def _per_year(rng: random.Random, content: Filled) -> tuple[str, str]:
    schema = content.schema
    parent, child = schema.parent, schema.child
    value = rng.choice(parent.groups)
    return (
        f"How many {child.many} of {parent.many} with the {parent.group_phrase} '{value}' {schema.date_phrase} in "
        "each year? Give the year, as text, and the number; leave out years without any.",
        f"SELECT strftime('%Y', c.{schema.date}), COUNT(*) FROM {child.name} c JOIN {parent.name} p ON c.{schema.key} "
        f"= p.id WHERE p.{parent.group} = {quoted(value)} GROUP BY 1",
    )


def _percentage(rng: random.Random, content: Filled) -> tuple[str, str]:
    schema = content.schema
    child = schema.child
    value, year = rng.choice(child.groups), rng.randint(FIRST_YEAR, LAST_YEAR)
    return (
        (
            f"Of the {child.many} that {schema.date_phrase} in {year}, what percentage (0 to 100) has the "
            f"{child.group_phrase} '{value}'?"
        ),
        (
            f"SELECT 100.0 * SUM({child.group} = {quoted(value)}) / COUNT(*) FROM {child.name} WHERE strftime('%Y', "
            f"{schema.date}) = '{year}'"
        ),
    )


FAMILIES: tuple[Family, ...] = (
    _count, _filtered, _extreme, _aggregate, _groups, _belonging, _sum_per_parent, _at_least, _missing, _above_average,
    _per_year, _percentage,
)  # fmt: skip
"""Kinds of questions: one table, grouping, joins, sub-queries, dates, shares."""
