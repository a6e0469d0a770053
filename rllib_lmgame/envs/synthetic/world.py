"""An invented world: people, places, works and organisations, and what connects them.

Everything is made up, so that no question can be answered from memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from rllib_lmgame.envs.support.datasets import package_lines, package_lists

PERSON, CITY, COUNTRY, NOVEL, FILM, OPERA = "person", "city", "country", "novel", "film", "opera"
COMPANY, UNIVERSITY = "company", "university"
COUNTS = {COUNTRY: 18, CITY: 90, UNIVERSITY: 30, PERSON: 260, NOVEL: 70, FILM: 60, OPERA: 40, COMPANY: 90}
"""Passages of each kind, 658 in all."""

MAX_HOPS = 3
Passage = tuple[str, str]
"""Title and text."""

Question = tuple[str, tuple[str, ...], str, tuple[str, ...]]
"""Text, right answers, key, and the titles of the passages that lead to the answer."""

NAMES = "deep_search_names.txt"


@dataclass
class Entity:
    """Something with a passage of its own; ``facts`` gives an entity or a plain text by relation."""

    kind: str
    name: str
    facts: dict[str, Entity | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Relation:
    """One kind of fact.

    Attributes:
        name: Key in ``Entity.facts``.
        phrase: How a question speaks of it, ``{}`` being the entity.
        sentences: How passages speak of it: ``{name}``, ``{value}``.
    """

    name: str
    phrase: str
    sentences: tuple[str, ...]


@cache
def relations_of(kind: str) -> tuple[Relation, ...]:
    """Facts an entity of this kind has."""
    rows = ([part.strip() for part in line.split("|")] for line in package_lines("deep_search_relations.txt"))
    return tuple(
        Relation(name, phrase, tuple(sentences)) for name, kinds, phrase, *sentences in rows if kind in kinds.split()
    )


def generated_world(seed: int) -> tuple[list[Passage], list[Question]]:
    """Passages and all questions of up to three hops about the world of ``seed``."""
    rng = random.Random(f"deep search world {seed}")
    entities = _entities(rng)
    passages = [_passage(rng, entity) for group in entities.values() for entity in group]
    rng.shuffle(passages)
    questions = [question for group in entities.values() for entity in group for question in questions_about(entity)]
    return passages, questions


def questions_about(start: Entity) -> list[Question]:
    """All questions that begin at ``start`` and come past no entity twice."""
    found: list[Question] = []

    def follow(entity: Entity, phrase: str, path: tuple[str, ...], used: tuple[str, ...]) -> None:
        for relation in relations_of(entity.kind):
            value = entity.facts[relation.name]
            asked = relation.phrase.format(phrase)
            answer = value.name if isinstance(value, Entity) else value
            if answer in path:
                continue
            word = "Who" if isinstance(value, Entity) and value.kind == PERSON else "What"
            key = " > ".join((start.name, *used, relation.name))
            found.append((f"{word} is {asked}?", (answer,), key, path))
            if isinstance(value, Entity) and len(path) < MAX_HOPS:
                follow(value, asked, (*path, value.name), (*used, relation.name))

    follow(start, start.name, (start.name,), ())
    return found


def _entities(rng: random.Random) -> dict[str, list[Entity]]:
    """All entities by kind, their facts filled in."""
    lists = package_lists(NAMES)
    taken: set[str] = set()

    def fresh(kind: str, make: Callable[[], str]) -> list[Entity]:
        made: list[Entity] = []
        while len(made) < COUNTS[kind]:
            name = make()
            if name not in taken:
                taken.add(name)
                made.append(Entity(kind, name))
        return made

    pick = lambda key: rng.choice(lists[key])  # noqa: E731
    entities = {
        COUNTRY: [Entity(COUNTRY, name) for name in lists["country"]],
        CITY: fresh(CITY, lambda: pick("city-head") + pick("city-tail")),
        PERSON: fresh(PERSON, lambda: f"{pick('first')} {pick('last-head')}{pick('last-tail')}"),
    }
    for kind in (NOVEL, FILM, OPERA):
        entities[kind] = fresh(kind, lambda: f"The {pick('work-adjective')} {pick('work-noun')}")
    entities[COMPANY] = fresh(COMPANY, lambda: f"{pick('last-head')}{pick('last-tail')} {pick('company-noun')}")
    entities[UNIVERSITY] = fresh(UNIVERSITY, lambda: f"{pick('last-head')}{pick('last-tail')} University")
    _connect(rng, entities)
    return entities


def _connect(rng: random.Random, entities: dict[str, list[Entity]]) -> None:
    lists, people, cities = package_lists(NAMES), entities[PERSON], entities[CITY]
    for i, country in enumerate(entities[COUNTRY]):
        country.facts |= {"capital": cities[i], "currency": lists["currency"][i], "language": lists["language"][i]}
        cities[i].facts["country"] = country
    mayors = rng.sample(people, len(cities))
    for city, mayor in zip(cities, mayors, strict=True):
        city.facts.setdefault("country", rng.choice(entities[COUNTRY]))
        city.facts |= {"river": rng.choice(lists["river"]), "mayor": mayor}
    order = rng.sample(people, len(people))
    for one, other in zip(order[::2], order[1::2], strict=True):
        one.facts["spouse"], other.facts["spouse"] = other, one
    for person in people:
        person.facts |= {
            "birthplace": rng.choice(cities),
            "born": str(rng.randint(1810, 1975)),
            "profession": rng.choice(lists["profession"]),
        }
        person.facts["studies"] = rng.choice(entities[UNIVERSITY])
    for kind, role in ((NOVEL, "author"), (FILM, "director"), (OPERA, "composer")):
        for work in entities[kind]:
            work.facts |= {
                role: rng.choice(people),
                "setting": rng.choice(cities),
                "appeared": str(rng.randint(1840, 2015)),
            }
    for institution in entities[COMPANY] + entities[UNIVERSITY]:
        institution.facts |= {
            "founder": rng.choice(people),
            "seat": rng.choice(cities),
            "founded": str(rng.randint(1840, 2010)),
        }


def _passage(rng: random.Random, entity: Entity) -> Passage:
    """The facts in sentences: the first one names the entity, the others come in any order."""
    first, *rest = relations_of(entity.kind)
    rng.shuffle(rest)
    sentences = []
    for relation in (first, *rest):
        value = entity.facts[relation.name]
        text = value.name if isinstance(value, Entity) else value
        sentences.append(rng.choice(relation.sentences).format(name=entity.name, value=text))
    return entity.name, " ".join(sentences)
