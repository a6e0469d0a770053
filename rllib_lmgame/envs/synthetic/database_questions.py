"""Questions about the databases of this package, with their queries, from templates."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from rllib_lmgame.envs.synthetic.databases import FIRST_YEAR, LAST_YEAR, SCHEMAS, Filled, filled

Family = Callable[[random.Random, Filled], tuple[str, str]]


def generated_questions(rng: random.Random) -> Iterator[tuple[str, str, str, str]]:
    """Endless questions: database, question, query and the database's ``CREATE TABLE`` statements."""
    names = sorted(SCHEMAS)
    while True:
        content = filled(rng.choice(names))
        question, sql = rng.choice(FAMILIES)(rng, content)
        yield content.schema.db_id, question, sql, content.schema.ddl


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
