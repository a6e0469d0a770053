"""The search index against the formula written out, and its order."""

from __future__ import annotations

import math
import random

import pytest

from rllib_lmgame.envs.support.bm25 import BM25

TEXTS = ["the red shoe", "a red red hat for the cold", "blue shoe, blue sole", "", "Straße über Ähren 東京"]


def by_formula(query: str, texts: list[str]) -> list[float]:
    """BM25 word by word and text by text: the independent reference."""
    split = [text.casefold().replace(",", "").split() for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        total = 0.0
        for word in set(query.casefold().split()):
            df, tf = sum(word in other for other in split), words.count(word)
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            total += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * len(words) / mean))
        scores.append(total)
    return scores


@pytest.mark.parametrize("query", ["red shoe", "RED red the", "blue", "nothing here", "straße", ""])
def test_scores_are_the_formula(query: str) -> None:
    assert BM25(TEXTS).scores(query).tolist() == pytest.approx(by_formula(query, TEXTS), abs=1e-7)


def test_random_texts_rank_as_the_formula_does() -> None:
    chance = random.Random(0)
    texts = [" ".join(chance.choices("abcdefghij", k=chance.randint(1, 12))) for _ in range(80)]
    index = BM25(texts)
    for _ in range(30):
        query = " ".join(chance.choices("abcdefghijz", k=3))
        reference = by_formula(query, texts)
        found = index.search(query, 200)
        assert {row for row, score in enumerate(reference) if score > 0} == set(found)
        assert [reference[row] for row in found] == pytest.approx(
            sorted((s for s in reference if s > 0), reverse=True), abs=1e-6
        )


def test_equal_scores_stay_in_order_and_the_limit_holds() -> None:
    index = BM25(["same words", "other", "same words", "same words"])
    assert index.search("words") == [0, 2, 3]
    assert index.search("words", 2) == [0, 2]
    assert index.search("absent") == [] and BM25([]).search("words") == []
