"""Full-text search over a fixed set of texts, ranked by BM25; the same order on every machine."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

K1, B = 1.2, 0.75
"""Saturation of repeated words and weight of a text's length: Lucene's defaults."""

MAX_QUERY_WORDS = 64
IDF_DIGITS = 9
"""Logarithms may differ in the last bit between machines; rounded they cannot, and the rest is exact IEEE
arithmetic.
"""

WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """Words of ``text`` as they are indexed: runs of letters and digits of any script, lower case."""
    return WORD.findall(text.casefold())


class BM25:
    """An index of texts that are numbered 0, 1, ... in the order given.

    The score of a text is the sum over the query's different words of ``idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b *
    length / mean length))`` with ``idf = log(1 + (n - df + 0.5) / (df + 0.5))`` (Robertson and Zaragoza, "The
    Probabilistic Relevance Framework", 2009; idf as in Lucene).

    Args:
        texts: What is searched; read once.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        lengths = array("d")
        postings: dict[str, tuple[array[int], array[float]]] = {}
        for row, text in enumerate(texts):
            words = words_of(text)
            lengths.append(len(words))
            for word, count in Counter(words).items():
                rows, counts = postings.setdefault(word, (array("q"), array("d")))
                rows.append(row)
                counts.append(count)
        self._size = len(lengths)
        length = np.array(lengths, dtype=np.float64)
        norm = K1 * (1 - B + B * length / max(float(length.sum()) / max(self._size, 1), 1.0))
        self._postings: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for word, (rows, counts) in postings.items():
            row_ids, tf = np.array(rows, dtype=np.int64), np.array(counts)
            idf = round(math.log(1 + (self._size - len(rows) + 0.5) / (len(rows) + 0.5)), IDF_DIGITS)
            self._postings[word] = (row_ids, idf * tf * (K1 + 1) / (tf + norm[row_ids]))

    def __len__(self) -> int:
        return self._size

    def scores(self, query: str) -> np.ndarray:
        """Score of every text, float64 ``[texts]``; only the first ``MAX_QUERY_WORDS`` different words count."""
        total = np.zeros(self._size)
        for word in list(dict.fromkeys(words_of(query)))[:MAX_QUERY_WORDS]:
            if word in self._postings:
                rows, parts = self._postings[word]
                total[rows] += parts
        return total

    def search(self, query: str, limit: int = 10) -> list[int]:
        """Numbers of the best texts, best first, equal scores in order of number; texts without a word of the query are
        left out.
        """
        total = self.scores(query)
        found = np.flatnonzero(total)
        order: Sequence[int] = found[np.argsort(-total[found], kind="stable")][:limit].tolist()
        return list(order)
