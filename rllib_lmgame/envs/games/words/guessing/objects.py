"""The things of TwentyQuestions, what is true of them, and which of it a question asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rllib_lmgame.envs.games.words.guessing.questions import (
    NEGATIONS,
    SIDE_WORDS,
    PhraseBook,
    all_words,
    telling_words,
    word_set,
    words_outside,
)
from rllib_lmgame.envs.support.datasets import package_lines

NO, YES, DEPENDS = 0, 1, 2
SIGNS = {"": YES, "-": NO, "?": DEPENDS}
COLOURS = ("red", "yellow", "green", "orange", "white", "brown", "black")

OBJECT_LINE = re.compile(r"([^(|]+?)\s*(?:\(([^)|]*)\))?\s*\|\s*(.*)")
LEAD_IN = word_set(
    """is are was be it they this that the a an some your object item thing answer secret word could can would might may
    my guess i think you thinking of maybe perhaps possibly then so final pair kind type sort piece ok well now"""
)
CLOSING = word_set("right then maybe perhaps please correct by chance any or not you thinking of now")
EATS = re.compile(r"\b(?:it|they|used?) (?:to )?eat\b(?! it)")
"""In "Does it eat?" and "Is it used to eat?" it is not what is eaten."""

CONNECTIVES = frozenset(("and", "or", "but", "both", "either"))


@dataclass(frozen=True)
class Asked:
    """What a question asks for.

    Attributes:
        attributes: Number of each attribute and whether it is asked for (``False``: whether it is lacking).
        any_of: One of them is enough ("or"); otherwise all are needed.
        flipped: The question as a whole is negated.
    """

    attributes: tuple[tuple[int, bool], ...]
    any_of: bool = False
    flipped: bool = False

    def answers(self, table: NDArray[np.int8]) -> NDArray[np.int8]:
        """Answer for each object, ``[objects]``, of :data:`NO`, :data:`YES` and :data:`DEPENDS`.

        Args:
            table: ``[attributes, objects]``.
        """
        rows = [table[number] if wanted else opposite(table[number]) for number, wanted in self.attributes]
        # As numbers 0 < 2 < 1 would be in order; "or" is the largest of false < depends < true, "and" the smallest.
        ranks = np.array([0, 2, 1], dtype=np.int8)
        ranked = np.stack([ranks[row] for row in rows])
        combined = ranks[ranked.max(axis=0) if self.any_of else ranked.min(axis=0)]
        return opposite(combined) if self.flipped else combined


def opposite(answers: NDArray[np.int8]) -> NDArray[np.int8]:
    """Yes for no and no for yes; what depends depends."""
    swapped: NDArray[np.int8] = np.array([YES, NO, DEPENDS], dtype=np.int8)[answers]
    return swapped


class ObjectTable:
    """Objects, attributes and the words for both.

    Attributes:
        objects: Names of the objects.
        categories: Category of each object.
        attributes: Keys of the attributes.
        questions: The question of each attribute.
        values: :data:`NO`, :data:`YES` or :data:`DEPENDS`, ``[attributes, objects]``.

    Args:
        attribute_lines: ``key | question | phrase; phrase; ...``; ``!`` before a phrase turns its answer round.
        object_lines: ``[category] attribute ...`` and ``name (other name, ...) | attribute ...``.

    Raises: ValueError: for a line in another form, an unknown attribute, or a phrase with two meanings.
    """

    def __init__(self, attribute_lines: Iterable[str], object_lines: Iterable[str]) -> None:
        rows = [[part.strip() for part in line.split("|")] for line in attribute_lines]
        self.attributes = tuple(row[0] for row in rows)
        self.questions = tuple(row[1] for row in rows)
        self._number = {key: number for number, key in enumerate(self.attributes)}
        entries = [(question, (number, True)) for number, question in enumerate(self.questions)]
        for number, (_, _, phrases) in enumerate(rows):
            entries += [
                (phrase.strip().lstrip("!"), (number, not phrase.strip().startswith("!")))
                for phrase in phrases.split(";")
            ]
        self._attribute_book: PhraseBook[tuple[int, bool]] = PhraseBook(entries)
        self._read_objects(object_lines)

    def _read_objects(self, lines: Iterable[str]) -> None:
        objects: list[str] = []
        categories: list[str] = []
        columns: list[list[int]] = []
        names: list[tuple[str, int]] = []
        category, common = "", ""
        for line in lines:
            if line.startswith("["):
                category, _, common = line[1:].partition("]")
                continue
            match = OBJECT_LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"{line!r} is no object; write name (other names) | attributes")
            name, others, flags = match[1], match[2] or "", match[3]
            names += [(said.strip(), len(objects)) for said in (name, *others.split(",")) if said.strip()]
            objects.append(name)
            categories.append(category)
            columns.append(self._column(f"{category} {common} {flags}", name))
        self.objects, self.categories = tuple(objects), tuple(categories)
        self.values: NDArray[np.int8] = np.array(columns, dtype=np.int8).T
        self._object_book: PhraseBook[int] = PhraseBook(names, whole=True)

    def _column(self, flags: str, name: str) -> list[int]:
        column = [NO] * len(self.attributes)
        for flag in flags.split():
            sign = flag[0] if flag[0] in "-?" else ""
            for key in COLOURS if flag == "?colours" else (flag.removeprefix(sign),):
                if key not in self._number:
                    raise ValueError(f"{name!r} has the attribute {key!r}, which is not on the list of attributes")
                column[self._number[key]] = SIGNS[sign]
        return column

    def guess(self, question: str) -> int | None:
        """Number of the object that the question guesses ("Is it a dog?", "dog"), or ``None``."""
        words = all_words(question)
        start, end = 0, len(words)
        while start < end and words[start] in LEAD_IN:
            start += 1
        number = self._object_book.get(words[start:end])
        while number is None and end > start + 1 and words[end - 1] in CLOSING:
            end -= 1
            number = self._object_book.get(words[start:end])
        # "Is it orange?" asks for the colour, "Is it an orange?" is a guess.
        article = start > 0 and words[start - 1] in ("a", "an", "the")
        return number if number is None or article or self._attribute_book.get(words[start:end]) is None else None

    def asked(self, question: str) -> Asked | None:
        """What the question asks for; ``None`` if a word of it is not understood."""
        words = all_words(question)
        if len(words) > 1 and words[1] == "n't":  # "Isn't it an animal?" expects what "Is it an animal?" does.
            del words[1]
        telling = telling_words(" ".join(words).replace(" n't", " not"))
        found = self._attribute_book.find(telling)
        rest = words_outside(telling, found)
        flips = sum(word in NEGATIONS for word in rest)
        left = [word for word in rest if word not in NEGATIONS and word not in SIDE_WORDS]
        if EATS.search(" ".join(words)) and any(telling[match.start : match.end] == ("eat",) for match in found):
            return None
        mixed = "or" in left and "and" in left
        if not found or mixed or any(word not in CONNECTIVES for word in left) or (flips and len(found) > 1):
            return None
        return Asked(tuple(match.value for match in found), any_of="or" in left, flipped=flips % 2 == 1)


@cache
def object_table() -> ObjectTable:
    """The table of this package."""
    return ObjectTable(package_lines("twenty_questions_attributes.txt"), package_lines("twenty_questions_objects.txt"))
