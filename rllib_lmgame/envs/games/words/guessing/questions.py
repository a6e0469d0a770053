"""Reading questions asked in plain words: which one is asked, its words in a comparable form, phrases found in it.

Everything here takes time proportional to the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from rllib_lmgame.envs.contract.base import InvalidAction

V = TypeVar("V")

MAX_QUESTION = 300
"""Longest question in characters."""

MAX_PHRASE = 8
"""Longest phrase of a :class:`PhraseBook` in words."""

WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def word_set(text: str) -> frozenset[str]:
    """The words of a text, separated by blanks."""
    return frozenset(text.split())


SENTENCE_ENDS = (". ", "! ", ": ", "\n")
NEGATIONS = frozenset(("not", "n't", "no", "never", "without"))
YES_NO_OPENERS = word_set("is are was were does do did can could has have had will would should may might")
OPEN_QUESTION_WORDS = word_set("what which where when who whose how why name tell describe")
OPENERS = YES_NO_OPENERS | OPEN_QUESTION_WORDS
SMALL_WORDS = word_set(
    """
    a an the it its is are was were be been being am does do did can could has have had will would should may might must
    you your we our us one ones someone somebody somewhat they them their this that these those there which who what i
    my me of to for as so then also just really quite rather mostly usually often normally typically generally commonly
    sometimes primarily mainly actually likely possibly perhaps maybe probably ever all any some most more use used
    using find found kind type sort category something anything thing object item piece out shape colour color
    associated related involve involved considered belong answer question please tell secret word guess think thinking
    when if right correct ok okay well now hmm say
    """
)
"""Words that say nothing about the thing asked for; they are left out."""

SIDE_WORDS = word_set("in on at by from with into very people person human humans make made making")
"""Words that may tell one phrase from another ("eat", "eat with"), and say nothing where they do not."""


def plain(text: str) -> str:
    """The text without accents and in lower case, in ASCII; other characters become spaces."""
    decomposed = unicodedata.normalize("NFKD", text.replace("\u2019", "'")).lower()
    return "".join(mark if mark.isascii() else "" if unicodedata.combining(mark) else " " for mark in decomposed)


def stem(word: str) -> str:
    """The word without the ending of a plural or of "does"."""
    if len(word) <= 3 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("sses", "shes", "ches", "xes")) else word[:-1]


def all_words(text: str) -> list[str]:
    """Words of a text in order, stemmed; ``n't`` becomes a word of its own, ``'s`` and the like are dropped."""
    words: list[str] = []
    for word in WORD.findall(plain(text)):
        if word.endswith("n't"):
            words += [{"ca": "can", "wo": "will"}.get(word[:-3], word[:-3]), "n't"]
        else:
            words.append(stem(word.partition("'")[0]))
    return words


STEMMED_SMALL_WORDS = frozenset(stem(word) for word in SMALL_WORDS)


def telling_words(text: str) -> tuple[str, ...]:
    """Words of a text less the :data:`SMALL_WORDS`."""
    return tuple(word for word in all_words(text) if word not in STEMMED_SMALL_WORDS)


def shown(text: str) -> str:
    """The text as it may be shown again: one line, without control characters, markup and what is no letter, number or
    plain punctuation.
    """
    kept = "".join(
        mark if (mark.isalnum() and mark.isprintable()) or mark in " ,.;:'?!()&-$%/" else " " for mark in text
    )
    return " ".join(kept.split())


def the_question(reply: str) -> str:
    """The one question of a reply.

    Sentences before it are left out, and so is what follows its question mark. Without a question mark the whole reply
    is the question.

    Raises: InvalidAction: if there are several different questions, or it is too long.
    """
    chunks = reply.replace("St. ", "St ").split("?")
    asked = [last_sentence(chunk) for chunk in chunks[:-1]] if len(chunks) > 1 else [reply]
    different: dict[str, str] = {}
    for question in asked:
        if question.strip():
            different.setdefault(" ".join(question.lower().split()), question.strip())
    if not different:
        raise InvalidAction("ask a question.")
    if len(different) > 1:
        raise InvalidAction("ask one question at a time.")
    (question,) = different.values()
    if len(question) > MAX_QUESTION:
        raise InvalidAction(f"ask a short question, at most {MAX_QUESTION} characters.")
    return question


def last_sentence(text: str) -> str:
    """What follows the last end of a sentence in the text."""
    text = text.strip()
    return text[max(text.rfind(end) + len(end) if end in text else 0 for end in SENTENCE_ENDS) :]


def is_question(question: str, openers: frozenset[str] = OPENERS) -> bool:
    """Whether one of the first words is one that opens a question."""
    opening = {stem(word) for word in openers}
    return any(word in opening for word in all_words(question)[:8])


class Match(NamedTuple, Generic[V]):
    """A phrase found at ``start`` (a word's number); ``end`` is the number of the word after it."""

    start: int
    end: int
    value: V


class PhraseBook(Generic[V]):
    """Phrases with what they mean.

    Args:
        entries: Phrase and meaning. A phrase is told by its :func:`telling_words`, or by all its words if ``whole``.
        whole: Compare all words.

    Raises: ValueError: if a phrase has no words, too many, or two meanings.
    """

    def __init__(self, entries: Iterable[tuple[str, V]], whole: bool = False) -> None:
        self._meanings: dict[tuple[str, ...], V] = {}
        for phrase, value in entries:
            words = tuple(all_words(phrase)) if whole else telling_words(phrase)
            if not 1 <= len(words) <= MAX_PHRASE:
                raise ValueError(f"{phrase!r} must have 1 to {MAX_PHRASE} words that count")
            if self._meanings.setdefault(words, value) != value:
                raise ValueError(f"{phrase!r} means both {self._meanings[words]!r} and {value!r}")

    def get(self, words: Iterable[str]) -> V | None:
        """Meaning of exactly these words."""
        return self._meanings.get(tuple(words))

    def find(self, words: tuple[str, ...]) -> list[Match[V]]:
        """Phrases in ``words`` from left to right, the longest one at each place, without overlap."""
        found: list[Match[V]] = []
        place = 0
        while place < len(words):
            for end in range(min(place + MAX_PHRASE, len(words)), place, -1):
                value = self._meanings.get(words[place:end])
                if value is not None:
                    found.append(Match(place, end, value))
                    place = end
                    break
            else:
                place += 1
        return found


def words_outside(words: tuple[str, ...], found: list[Match[V]]) -> list[str]:
    """Words that belong to none of the phrases found."""
    covered = {place for match in found for place in range(match.start, match.end)}
    return [word for place, word in enumerate(words) if place not in covered]
