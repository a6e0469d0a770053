"""An invented world: people, places, works and organisations, and what connects them.

Everything is made up, so that no question can be answered from memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache

from rllib_lmgame.envs.games.web.deep_search.corpus import Corpus, Passage, Question
from rllib_lmgame.envs.support.datasets import package_lines

PERSON, CITY, COUNTRY, NOVEL, FILM, OPERA, COMPANY, UNIVERSITY = (
    "person",
    "city",
    "country",
    "novel",
    "film",
    "opera",
    "company",
    "university",
)
COUNTS = {COUNTRY: 18, CITY: 90, UNIVERSITY: 30, PERSON: 260, NOVEL: 70, FILM: 60, OPERA: 40, COMPANY: 90}
"""Passages of each kind, 658 in all."""

MAX_HOPS = 3


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
        kinds: Kinds of entity that have it.
        phrase: How a question speaks of it, ``{}`` being the entity.
        sentences: How passages speak of it: ``{name}``, ``{value}``.
    """

    name: str
    kinds: tuple[str, ...]
    phrase: str
    sentences: tuple[str, ...]


def _relation(name: str, kinds: str, phrase: str, *sentences: str) -> Relation:
    return Relation(name, tuple(kinds.split()), phrase, sentences)


RELATIONS = (
    _relation(
        "author", NOVEL, "the author of {}", "{name} is a novel by {value}.", "The novel {name} was written by {value}."
    ),
    _relation(
        "director",
        FILM,
        "the director of {}",
        "{name} is a film directed by {value}.",
        "{value} directed the film {name}.",
    ),
    _relation(
        "composer",
        OPERA,
        "the composer of {}",
        "{name} is an opera composed by {value}.",
        "The music of the opera {name} is by {value}.",
    ),
    _relation(
        "setting",
        f"{NOVEL} {FILM} {OPERA}",
        "the city in which {} is set",
        "The story takes place in {value}.",
        "It is set in {value}.",
    ),
    _relation(
        "appeared",
        f"{NOVEL} {FILM} {OPERA}",
        "the year in which {} first appeared",
        "It first appeared in {value}.",
        "The public first saw it in {value}.",
    ),
    _relation(
        "birthplace",
        PERSON,
        "the city where {} was born",
        "{name} was born in {value}.",
        "{value} is the birthplace of {name}.",
    ),
    _relation(
        "born",
        PERSON,
        "the year in which {} was born",
        "The year of birth is {value}.",
        "Church records give {value} as the year of birth.",
    ),
    _relation(
        "profession",
        PERSON,
        "the profession of {}",
        "By profession {name} was: {value}.",
        "{name} earned a living as {value}.",
    ),
    _relation(
        "spouse",
        PERSON,
        "the spouse of {}",
        "{name} was married to {value}.",
        "{value} and {name} were husband and wife.",
    ),
    _relation(
        "studies",
        PERSON,
        "the university where {} studied",
        "{name} studied at {value}.",
        "A degree was earned at {value}.",
    ),
    _relation(
        "country",
        CITY,
        "the country that {} lies in",
        "{name} is a city in {value}.",
        "The city of {name} belongs to {value}.",
    ),
    _relation(
        "river",
        CITY,
        "the river that flows through {}",
        "The river {value} flows through it.",
        "It lies on the river {value}.",
    ),
    _relation("mayor", CITY, "the mayor of {}", "Its mayor is {value}.", "The office of mayor is held by {value}."),
    _relation(
        "capital",
        COUNTRY,
        "the capital of {}",
        "The capital of {name} is {value}.",
        "{name} is governed from its capital, {value}.",
    ),
    _relation(
        "currency", COUNTRY, "the currency of {}", "People pay with the {value}.", "Its currency is the {value}."
    ),
    _relation(
        "language",
        COUNTRY,
        "the official language of {}",
        "The official language is {value}.",
        "Laws are written in {value}, the official language.",
    ),
    _relation(
        "founder",
        f"{COMPANY} {UNIVERSITY}",
        "the founder of {}",
        "{name} was founded by {value}.",
        "{value} founded {name}.",
    ),
    _relation(
        "seat",
        f"{COMPANY} {UNIVERSITY}",
        "the city in which {} has its seat",
        "Its seat is in {value}.",
        "It is based in {value}.",
    ),
    _relation(
        "founded",
        f"{COMPANY} {UNIVERSITY}",
        "the year in which {} was founded",
        "The founding year is {value}.",
        "It opened its doors in {value}.",
    ),
)


@cache
def names() -> dict[str, tuple[str, ...]]:
    """The lists of ``deep_search_names.txt``."""
    pairs = (line.split(":", 1) for line in package_lines("deep_search_names.txt"))
    return {key: tuple(value.strip() for value in values.split(";")) for key, values in pairs}


@cache
def relations_of(kind: str) -> tuple[Relation, ...]:
    """Facts an entity of this kind has."""
    return tuple(relation for relation in RELATIONS if kind in relation.kinds)


@lru_cache(maxsize=4)
def generated_corpus(seed: int) -> Corpus:
    """Passages and all questions of up to three hops about the world of ``seed``; made once per process."""
    rng = random.Random(f"deep search world {seed}")
    entities = _entities(rng)
    passages = [_passage(rng, entity) for group in entities.values() for entity in group]
    rng.shuffle(passages)
    questions = [question for group in entities.values() for entity in group for question in questions_about(entity)]
    return Corpus(passages, questions)


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
            found.append(Question(f"{word} is {asked}?", (answer,), key, path))
            if isinstance(value, Entity) and len(path) < MAX_HOPS:
                follow(value, asked, (*path, value.name), (*used, relation.name))

    follow(start, start.name, (start.name,), ())
    return found


def _entities(rng: random.Random) -> dict[str, list[Entity]]:
    """All entities by kind, their facts filled in."""
    lists = names()
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
    lists, people, cities = names(), entities[PERSON], entities[CITY]
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
    return Passage(entity.name, " ".join(sentences))
