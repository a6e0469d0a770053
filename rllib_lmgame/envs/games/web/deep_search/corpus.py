"""Passages, questions, and when an answer is right."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from rllib_lmgame.envs.support.bm25 import BM25
from rllib_lmgame.envs.support.retrieval.passages import Passage
from rllib_lmgame.envs.synthetic.world import generated_world

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        text: The question.
        answers: Texts that are right, the first one to be given.
        key: What tells it from other questions.
        path: Titles of the passages that lead to the answer, in the order of reading; empty if they are not known.
        source: Data set it comes from; empty if that is not known.
        split: Split its publisher has it in; empty if none.
        number: Among all questions of Search-R1's seven sets, as AgentGym counts; ``None`` if it is none of them.
    """

    text: str
    answers: tuple[str, ...]
    key: str
    path: tuple[str, ...] = ()
    source: str = ""
    split: str = ""
    number: int | None = None

    @property
    def hops(self) -> int:
        """Passages to read."""
        return len(self.path)


@dataclass
class Corpus:
    """Passages to search, and questions about them."""

    passages: Sequence[Passage]
    questions: Sequence[Question]

    @cached_property
    def index(self) -> BM25:
        """The search index; a title counts twice."""
        return BM25(f"{passage.title} {passage.title} {passage.text}" for passage in self.passages)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The passages that fit each query best."""
        return [[self.passages[row] for row in self.index.search(query, topk)] for query in queries]


def normalised(text: str) -> str:
    """SQuAD's form of an answer: lower case, no punctuation, no articles, single spaces (Rajpurkar et al., 2016)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> bool:
    """Whether the answer is one of the right ones, normalised."""
    return normalised(answer) in {normalised(text) for text in right}


def holds_answer(answer: str, right: Sequence[str]) -> bool:
    """Whether one of the right answers stands in the answer, both normalised (Search-R1's ``sub_em``).

    A right answer of which nothing is left stands in such an answer alone, and not in every text.
    """
    said = normalised(answer)
    return any(text in said if text else not said for text in map(normalised, right))


def f1(answer: str, right: Sequence[str]) -> float:
    """Best harmonic mean of the precision and recall of the answer's words, against any of the right ones."""
    return max(_f1(normalised(answer).split(), normalised(text).split()) for text in right)


def _f1(said: list[str], right: list[str]) -> float:
    if not said or not right:
        return float(said == right)
    shared = (Counter(said) & Counter(right)).total()
    return 2 * shared / (len(said) + len(right))


@lru_cache(maxsize=4)
def generated_corpus(seed: int) -> Corpus:
    """The invented world of ``seed``; made once per process."""
    passages, questions = generated_world(seed)
    return Corpus([Passage(*passage) for passage in passages], [Question(*question) for question in questions])
