"""Search by vectors: a FAISS index on disk beside the corpus it was made from."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.downloads.places import path_of
from rllib_lmgame.envs.support.retrieval.encoder import Encoder
from rllib_lmgame.envs.support.retrieval.passages import Passage, PassageFile, chunks

FLAT = "Flat"
PASSAGES_AT_ONCE = 1024
SAME_COSINE = 0.95
"""Least cosine of an index's vector and the encoder's own of the same passage; less is another model's, or of another
passage.
"""


@dataclass(frozen=True)
class Keys:
    """Options that name corpus, index and encoder, for messages."""

    corpus: str
    index: str
    encoder: str


class DenseRetriever:
    """The passages whose vectors have the largest inner products with a query's.

    Args:
        corpus: The passages.
        index: FAISS index of their vectors, in their order.
        encoder: Model that made it, a hub id or directory.
        keys: What messages name.

    Raises:
        ConfigError: the index cannot be read, or is not one of this corpus by this model.
        MissingDependencyError: FAISS is not installed.
    """

    def __init__(self, corpus: PassageFile, index: str | Path, encoder: str, keys: Keys) -> None:
        self.corpus = corpus
        self._index = open_index(index, keys.index)
        if self._index.ntotal != len(corpus):
            why = f"{index} has {self._index.ntotal:,} vectors, and {corpus.path} {len(corpus):,} passages"
            raise ConfigError(keys.index, f"{why}; `rllib retriever --build` makes one of this corpus")
        self._encoder = Encoder(encoder, keys.encoder)
        if self._index.d != self._encoder.size:
            why = f"{index} has vectors of {self._index.d} numbers, and {encoder} makes {self._encoder.size}"
            raise ConfigError(keys.index, f"{why}; name the model that made it as {keys.encoder}")
        self._check_vectors(index, encoder, keys)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Up to ``topk`` passages for each query, best first."""
        rows, _ = self.rows(queries, topk)
        return [[self.corpus[int(row)] for row in each if row >= 0] for each in rows]

    def rows(self, queries: Sequence[str], topk: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the passages, int64 ``[queries, topk]``, -1 for none, and their inner products."""
        if not len(queries):
            return np.zeros((0, topk), np.int64), np.zeros((0, topk), np.float32)
        scores, rows = self._index.search(self._encoder.queries(queries), topk)
        return rows, scores

    def _check_vectors(self, index: str | Path, encoder: str, keys: Keys) -> None:
        """Compare vectors of some passages, if the index can give them."""
        for row in sorted({0, len(self.corpus) // 2, len(self.corpus) - 1}):
            try:
                kept = self._index.reconstruct(row)
            except RuntimeError:  # An index that keeps no vectors as they are.
                return
            own = self._encoder.passages([self.corpus[row].contents])[0]
            cosine = float(own @ kept) / max(float(np.linalg.norm(kept)), 1e-9)
            if not cosine >= SAME_COSINE:
                why = f"the vector of passage {row + 1} in {index} is not the one {encoder} makes (cosine {cosine:.2f})"
                raise ConfigError(keys.index, f"{why}: it is of another model, or of another corpus")


def open_index(path: str | Path, key: str) -> Any:
    """A FAISS index by inner products, mapped from disk where its kind allows that.

    Raises:
        ConfigError: there is none, or it is damaged or of another kind.
    """
    faiss = load_faiss()
    file = path_of(path, key)
    if not file.is_file():
        raise ConfigError(key, f"{str(file)!r} does not exist; `rllib retriever --build` makes an index of a corpus")
    try:
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ConfigError(key, f"{file} is no FAISS index that can be read: {first_line(error)[:200]}") from None
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ConfigError(key, f"{file} compares by distances; E5 needs an index by inner products")
    return index


def write_index(
    corpus: PassageFile,
    encoder: Encoder,
    path: Path,
    kind: str = FLAT,
    key: str = "",
    told: Callable[[int], None] = lambda done: None,
) -> None:
    """Write a FAISS index of the passages; memory holds all vectors until then.

    Args:
        corpus: The passages.
        encoder: Makes the vectors.
        path: The new file.
        kind: As FAISS's ``index_factory`` names them; one that needs training is not made here.
        key: Option that names ``kind``, for messages.
        told: Is told how many passages are done.

    Raises:
        ConfigError: there is no such kind.
        OSError: the file cannot be written.
    """
    faiss = load_faiss()
    try:
        index = faiss.index_factory(encoder.size, kind, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(key, f"FAISS knows no index {kind!r}: {first_line(error)[:200]}") from None
    if not index.is_trained:
        raise ConfigError(key, f"an index {kind!r} must be trained first; take Flat, which is exact, or HNSW64")
    done = 0
    for passages in chunks(corpus, PASSAGES_AT_ONCE):
        index.add(encoder.passages([passage.contents for passage in passages]))
        done += len(passages)
        told(done)
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise OSError(errno.EIO, first_line(error)[:200]) from None


def load_faiss() -> Any:
    """The module. Raises: MissingDependencyError: it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError(
            "searching by vectors needs FAISS: pip install 'rllib-lmgame[retriever]'"
        ) from error
    return faiss
