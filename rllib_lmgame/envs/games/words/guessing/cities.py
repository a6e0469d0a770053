"""The cities of GuessMyCity: facts about each, and what a question about them asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from rllib_lmgame.envs.games.words.guessing.oracle import UNKNOWN
from rllib_lmgame.envs.games.words.guessing.questions import (
    NEGATIONS,
    OPEN_QUESTION_WORDS,
    SIDE_WORDS,
    YES_NO_OPENERS,
    PhraseBook,
    all_words,
    telling_words,
    word_set,
    words_outside,
)
from rllib_lmgame.envs.support.datasets import package_lines

NONE = "-"
RIGHT, WRONG = "Yes.", "No."
NO_NAME = "I will not tell you its name."
MAX_NAME = 5
"""Words of the longest name."""


class Topic(NamedTuple):
    """Something that can be asked about a city.

    Attributes:
        key: Column of the table.
        question: As the game lists it.
        phrases: Words that ask for it, separated by ``;``.
        sentence: The answer, with the fact for ``{}``.
        none: The answer where there is nothing to tell.
    """

    key: str
    question: str
    phrases: str
    sentence: str
    none: str = UNKNOWN


TOPICS = tuple(Topic(*map(str.strip, line.split("|"))) for line in package_lines("city_topics.txt"))
TOPIC_NUMBER = {topic.key: number for number, topic in enumerate(TOPICS)}
YES_NO_TOPICS = tuple(topic.key for topic in TOPICS if topic.key not in ("people", "capital", "fame"))
"""Topics whose facts may be asked for by yes or no: "Is it in France?"."""

PEOPLE = {"S": "fewer than one million", "M": "between one and five million", "L": "more than five million"}
CAPITAL = {"yes": "the capital", "no": "not the capital"}
NAME_PHRASES = "name; called; letter; begin; start; spell; rhyme; initial; syllable"
OTHER_NAMES = {
    "the United States": "USA; United States of America; the States",
    "the United Kingdom": "UK; Britain; Great Britain",
    "the Netherlands": "Holland",
    "the Czech Republic": "Czechia; Czech",
    "South Korea": "Korea",
    "the United Arab Emirates": "UAE; Emirates",
    "the Mediterranean Sea": "the Mediterranean",
    "the Pacific Ocean": "the Pacific",
    "the Atlantic Ocean": "the Atlantic",
    "the Baltic Sea": "the Baltic",
    "Oceania": "Australia and Oceania",
    "northern": "north of the equator",
    "southern": "south of the equator",
}
HALVES = frozenset(("northern", "southern"))
"""Facts that are meant only where the question speaks of a hemisphere or the equator: Naples lies in southern Italy."""

REGIONS = {
    "the Americas": "the United States; Canada; Cuba; Brazil; Argentina; Chile; Peru; Colombia; Ecuador; Bolivia",
    "Scandinavia": "Denmark; Sweden; Norway",
    "Southeast Asia": "Thailand; Vietnam; the Philippines; Malaysia",
    "East Asia": "Japan; China; Taiwan; South Korea; Mongolia",
    "South Asia": "India; Nepal; Bangladesh; Pakistan",
    "the Middle East": "Iran; Iraq; Lebanon; Saudi Arabia; the United Arab Emirates; Egypt; Turkey",
    "North Africa": "Egypt; Morocco",
    "Latin America": "Cuba; Brazil; Argentina; Chile; Peru; Colombia; Ecuador; Bolivia",
    "the European Union": (
        "Ireland; France; Belgium; the Netherlands; Germany; Austria; Italy; Spain; Portugal; Denmark; Sweden; "
        "Finland; the Czech Republic; Hungary; Poland; Greece; Croatia"
    ),
}
PARTS = {"London": "England", "Edinburgh": "Scotland"}

CITY_LINE = re.compile(r"([^(|]+?)\s*(?:\(([^)|]*)\))?\s*\|\s*(.*)")
LEAD_IN = word_set("""
is are was be it this that the your city town answer place could can would might may my guess i think you thinking of in
from live do located maybe perhaps possibly then so final ok well now called named
""")
CLOSING = word_set("right then maybe perhaps please correct by chance city you thinking of now in the")
FILLERS = word_set("""
and or but either both city town located lie lying locate situated place there local main official national country
continent ocean sea river hemisphere language speak spoken currency money pay eat food weather climate live famous known
near close flow through flows come citizen inhabitant resident area region part world have
""")


@dataclass(frozen=True)
class Reading:
    """What a question asks for: one of a guess, facts to be confirmed, or a topic; nothing of it if it is not
    understood.

    Attributes:
        guess: Number of the city guessed.
        facts: Facts named in a yes-or-no question, each as all it may mean.
        any_of: One of the facts is enough.
        flipped: The yes-or-no question is negated.
        topic: Number of the topic asked about.
        name: It asks for the name.
    """

    guess: int | None = None
    facts: tuple[frozenset[str], ...] = ()
    any_of: bool = False
    flipped: bool = False
    topic: int | None = None
    name: bool = False


class CityTable:
    """Cities, their facts and the words for both.

    Attributes:
        cities: Names.
        names: All names of each city.
        answers: Answer about each topic, by topic and city.

    Args:
        lines: ``name (other names) | fact | ...`` in the order of :data:`TOPICS`.

    Raises: ValueError: for a line in another form.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        rows = [self._row(line) for line in lines]
        self.names = tuple(names for names, _ in rows)
        self.cities = tuple(names[0] for names in self.names)
        facts = [dict(zip(TOPIC_NUMBER, row, strict=True)) for _, row in rows]
        self.answers = tuple(tuple(sentence(topic, city[topic.key]) for city in facts) for topic in TOPICS)
        self._items = tuple(items_of(name, city) for name, city in zip(self.cities, facts, strict=True))
        meanings: dict[tuple[str, ...], set[str]] = {}
        for item in sorted(set().union(*self._items)):
            for phrase in (item, *OTHER_NAMES.get(item, "").split(";")):
                if telling_words(phrase):
                    meanings.setdefault(telling_words(phrase), set()).add(item)
        self._fact_book = PhraseBook((" ".join(words), frozenset(items)) for words, items in meanings.items())
        self._topic_book = PhraseBook(
            (phrase, number)
            for number, topic in enumerate(TOPICS)
            for phrase in topic.phrases.split(";")
            if telling_words(phrase)
        )
        self._city_book = PhraseBook(
            ((name, number) for number, names in enumerate(self.names) for name in names), whole=True
        )
        self._name_words = frozenset(word for phrase in NAME_PHRASES.split(";") for word in telling_words(phrase))

    @staticmethod
    def _row(line: str) -> tuple[tuple[str, ...], list[str]]:
        match = CITY_LINE.fullmatch(line)
        facts = [fact.strip() for fact in match[3].split("|")] if match else []
        if match is None or len(facts) != len(TOPICS) or facts[2] not in PEOPLE or facts[3] not in CAPITAL:
            raise ValueError(f"{line!r} is no city; write name (other names) and {len(TOPICS)} facts, separated by |")
        return (match[1], *(other.strip() for other in (match[2] or "").split(",") if other.strip())), facts

    def read(self, question: str) -> Reading:
        """What the question asks for."""
        guess = self.guess(question)
        if guess is not None:
            return Reading(guess=guess)
        words = all_words(plain_states(question))
        opening = [word for word in words[:4] if word in QUESTION_WORDS]
        rhetorical = len(words) > 1 and words[1] == "n't"
        telling = telling_words(" ".join(words[:1] + words[2:] if rhetorical else words).replace(" n't", " not"))
        facts = self._fact_book.find(telling)
        places = [match for match in facts if not match.value <= HALVES]
        if len(places) < len(facts) and (places or not {"hemisphere", "equator"} & set(telling)):
            return Reading()
        if facts and opening and opening[0] in STEMMED_YES_NO:
            left = words_outside(telling, facts)
            rest = [word for word in left if word not in SIDE_WORDS and word not in STEMMED_FILLERS]
            if all(word in NEGATIONS for word in rest) and (len(facts) == 1 or not rest):
                return Reading(
                    facts=tuple(match.value for match in facts), any_of="or" in telling, flipped=len(rest) % 2 == 1
                )
        topics = self._topic_book.find(telling)
        if topics:  # "famous food" asks for the food.
            plain = [match.value for match in topics if TOPICS[match.value].key != "fame"]
            return Reading(topic=(plain or [topics[0].value])[0])
        return Reading(name=any(word in self._name_words for word in telling))

    def guess(self, question: str) -> int | None:
        """Number of the city that the question guesses ("Is it Paris?", "Paris, France"), or ``None``."""
        words = all_words(question.replace("St. ", "St "))
        start = 0
        while start < len(words) and words[start] in LEAD_IN:
            start += 1
        for end in range(min(start + MAX_NAME, len(words)), start, -1):
            number = self._city_book.get(words[start:end])
            if number is not None:
                rest = telling_words(" ".join(word for word in words[end:] if word not in CLOSING))
                whole = not words_outside(rest, self._fact_book.find(rest)) or set(rest) <= {"in"}
                return number if whole else None
        return None

    def answer(self, reading: Reading, city: int) -> str:
        """The answer to a question about a city."""
        if reading.guess is not None:
            return RIGHT if reading.guess == city else WRONG
        if reading.facts:
            holds = [bool(meant & self._items[city]) for meant in reading.facts]
            return RIGHT if (any(holds) if reading.any_of else all(holds)) != reading.flipped else WRONG
        if reading.topic is not None:
            return self.answers[reading.topic][city]
        return NO_NAME if reading.name else UNKNOWN


STEMMED_YES_NO = frozenset(word for opener in YES_NO_OPENERS for word in all_words(opener))
QUESTION_WORDS = STEMMED_YES_NO | OPEN_QUESTION_WORDS
STEMMED_FILLERS = frozenset(word for filler in FILLERS for word in all_words(filler))


def sentence(topic: Topic, fact: str) -> str:
    """The answer about a topic."""
    if fact == NONE:
        return topic.none
    fact = {"people": PEOPLE, "capital": CAPITAL}.get(topic.key, {}).get(fact, fact)
    said = topic.sentence.format(fact)
    if topic.key == "river" and " and " in fact:
        said = f"The rivers there are {fact}."
    return said[0].upper() + said[1:]


def items_of(name: str, facts: dict[str, str]) -> frozenset[str]:
    """What a yes-or-no question may name of a city: its facts one by one, the regions and the part of
    the country it is in.
    """
    items = {item for key in YES_NO_TOPICS for item in parts_of(facts[key])}
    items |= {region for region, countries in REGIONS.items() if facts["country"] in countries.split("; ")}
    return frozenset(items | ({PARTS[name]} if name in PARTS else set()))


def parts_of(fact: str) -> set[str]:
    """A fact as a whole and its parts ("French and Dutch", "French", "Dutch")."""
    return {part for part in (fact, *re.split(r" and |, ", fact)) if part not in ("", NONE)}


def plain_states(question: str) -> str:
    """The question with ``US`` as ``USA``, so that it is not read as "us"."""
    return re.sub(r"\bU\.S\.(?:A\.)?|\bUS\b", "USA", question)


@cache
def city_table() -> CityTable:
    """The table of this package."""
    return CityTable(package_lines("cities.txt"))
