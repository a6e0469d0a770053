"""Who searches for DeepSearch: the names of its option ``retriever``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from rllib_lmgame.base.plugin import import_path_or
from rllib_lmgame.base.registry import check_call, made
from rllib_lmgame.base.storage import is_remote
from rllib_lmgame.base.text import in_words
from rllib_lmgame.envs.support.retrieval.client import HttpRetriever, RetrieverError, passages_of
from rllib_lmgame.envs.support.retrieval.passages import Passage, PassageFile

KEY = "env_config.retriever"
BM25, E5 = "bm25", "e5"


class Retriever(Protocol):
    """Searches a corpus. A class of one's own is made without arguments, once per process, and used from several
    threads. Its results may also be mappings or texts, as :func:`~.client.passages_of` reads them.
    """

    def search(self, queries: Sequence[str], topk: int) -> Sequence[Sequence[Any]]:
        """Up to ``topk`` passages for each query, best first."""


@lru_cache(maxsize=4)
def retriever_of(name: str, corpus: str | None, index: str | None, encoder: str, timeout_s: float) -> Retriever:
    """The retriever that ``name`` names, other than ``bm25``; made once per process. An address is not asked.

    Raises:
        ConfigError: there is none, or it cannot be used with the rest.
        MissingDependencyError: FAISS is not installed.
    """
    if is_remote(name):
        return HttpRetriever(name, timeout_s, KEY)
    if name == E5:
        from rllib_lmgame.envs.support.retrieval.dense import DenseRetriever, Keys

        keys = Keys("env_config.corpus", "env_config.index", "env_config.encoder")
        return DenseRetriever(PassageFile(corpus or "", keys.corpus), index or "", encoder, keys)
    others = f"{BM25}, {E5} or an address, http://HOST:PORT/retrieve"
    own = made(import_path_or(name, KEY, others), name, KEY)
    check_call(getattr(own, "search", None), f"{name}.search", KEY, "a retriever has search(queries, topk)", [], 1)
    return own


def found_by(retriever: Retriever, query: str, topk: int) -> list[Passage]:
    """The passages that a retriever finds. Raises: RetrieverError: it fails, or gives something else."""
    try:
        return passages_of(retriever.search([query], topk), 1)[0][:topk]
    except RetrieverError:
        raise
    except Exception as error:
        raise RetrieverError(f"the retriever {type(retriever).__name__} raised {in_words(error)}") from error
