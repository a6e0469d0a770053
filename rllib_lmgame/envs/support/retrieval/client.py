"""A retriever behind an address, in the protocol of Search-R1 and SkyRL.

1. Searches of a process that come within :data:`GATHER_S` of each other are one request.
2. A search ends within its time limit, with passages or with :class:`RetrieverError`, however slowly bytes may come.
3. Statuses 500, 502, 503 and 504 and broken connections are tried again, ever later, while there is time. Other
   statuses and answers that are none are not.
4. A query that the server refuses (400, 422) or fails at (500) fails its own search alone: each query of such a request
   is asked again by itself.
5. No redirect is followed, no proxy asked, no cookie kept.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import WaitedTooLong, waiting
from rllib_lmgame.base.text import one_line, printable
from rllib_lmgame.envs.support.retrieval.passages import Passage, passage_of

GATHER_S = 0.02
SLACK_S = 5.0
"""What a search may take beyond its limit: the gathering, and what cannot be stopped."""
FAILED = 500
"""The status of a server that a single query may have broken."""
PASSING = (FAILED, 502, 503, 504)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 8.0
MOST_BYTES = 32 << 20
SHOWN = 200
"""Characters of a server's answer that are told."""


class RetrieverError(WaitedTooLong):
    """A search got no answer that can be used."""


def passages_of(answer: Any, queries: int) -> list[list[Passage]]:
    """What an answer found for each of so many queries.

    A list for each query, or for a single one its results alone; a result is ``{"document": ..., "score": ...}`` or
    the document: ``{"title", "text"}``, ``{"contents"}``, a :class:`Passage` or a text in the form of ``contents``.

    Raises:
        RetrieverError: it has another form; the message says where.
    """
    if not isinstance(answer, list | tuple):
        raise RetrieverError(f"the results are {type(answer).__name__}, not a list for each query")
    lists = answer if answer and all(isinstance(found, list | tuple) for found in answer) else [answer]
    if len(lists) != queries:
        raise RetrieverError(f"there are results for {len(lists)} queries; asked were {queries}")
    return [[_passage(found, f"result {i}") for i, found in enumerate(each, 1)] for each in lists]


def _passage(found: Any, where: str) -> Passage:
    if isinstance(found, dict):
        found = found.get("document", found)
    if isinstance(found, Passage):
        return found
    if isinstance(found, str):
        found = {"contents": found}
    if not isinstance(found, dict):
        raise RetrieverError(f"{where} is {type(found).__name__}, not a document")
    try:
        return passage_of(found, "", where)
    except ConfigError as error:
        raise RetrieverError(error.message) from None


@dataclass
class _Batch:
    """Searches that go out together."""

    topk: int
    queries: list[str] = field(default_factory=list)
    found: list[Future[list[Passage]]] = field(default_factory=list)
    """Of each query; what was found is told at once, a failure when all have been asked."""

    def fail(self, error: BaseException) -> None:
        """This is why nothing is known of those that have not been told of."""
        for each in self.found:
            if not each.done():
                each.set_exception(error)


@dataclass(frozen=True)
class _Asking:
    """The client that asks, for how many results, until when, and whether faults that may pass are waited for."""

    http: Any
    topk: int
    ends: float
    patient: bool


class HttpRetriever:
    """Searches by ``POST``; one for each address in a process, used from many threads.

    Args:
        url: ``http(s)://HOST:PORT/retrieve``.
        limit_s: Seconds a search may take, all its attempts together.
        gather: Waits for searches to go out with the first; by default :data:`GATHER_S`.

    Raises:
        ConfigError: the address is none.
    """

    def __init__(
        self, url: str, limit_s: float, key: str, gather: Callable[[], None] = lambda: time.sleep(GATHER_S)
    ) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(key, f"{url!r} is no address; write it like http://127.0.0.1:8000/retrieve")
        self.url, self._limit_s, self._key, self._gather = url, limit_s, key, gather
        self.shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self._lock = threading.Lock()
        self._open: dict[int, _Batch] = {}

    def check(self, topk: int) -> None:
        """Search once, to see that somebody answers in this protocol.

        Raises:
            ConfigError: nobody does.
        """
        try:
            batch = _Batch(topk, ["capital"], [Future()])
            asyncio.run(self._ask(batch, patient=False))
            batch.found[0].result()
        except RetrieverError as error:
            start = "`rllib retriever` starts one; a slow one needs more `retriever_timeout_s`"
            raise ConfigError(self._key, f"{error}; {start}") from None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Up to ``topk`` passages for each query, best first.

        Raises:
            RetrieverError: no answer that can be used within the time limit.
        """
        if not queries:
            return []
        with self._lock:
            batch = self._open.get(topk)
            first = batch is None
            if batch is None:
                batch = self._open[topk] = _Batch(topk)
            batch.queries += queries
            own: list[Future[list[Passage]]] = [Future() for _ in queries]
            batch.found += own
        if first:  # A thread of its own: callers may be given up, or have a running event loop.
            try:
                threading.Thread(target=self._send, args=(batch,), daemon=True, name="retriever").start()
            except RuntimeError as error:
                with self._lock:
                    self._open.pop(topk, None)
                batch.fail(RetrieverError(f"no search could be started: {error}"))
        with waiting():  # The limit is this object's own.
            wait(own, self._limit_s + SLACK_S)
        try:
            return [each.result(0) for each in own]
        except TimeoutError:  # A name that is looked up for ever.
            raise RetrieverError(f"{self.shown} gave no answer within {self._limit_s:g} s") from None

    def _send(self, batch: _Batch) -> None:
        try:
            self._gather()
        finally:
            with self._lock:
                del self._open[batch.topk]
        try:
            asyncio.run(self._ask(batch))
        except BaseException as error:
            batch.fail(error)

    async def _ask(self, batch: _Batch, patient: bool = True) -> None:
        """Ask in one request, and tell what each query found; each query by itself where that is refused."""
        from rllib_lmgame.base import http_client

        ends = asyncio.get_running_loop().time() + self._limit_s
        async with http_client.client() as http:
            asking = _Asking(http, batch.topk, ends, patient)
            try:
                found = await self._answer(asking, batch.queries)
            except _RefusedError:
                pairs = zip(batch.queries, batch.found, strict=True)
                await asyncio.gather(*(self._ask_alone(asking, query, told) for query, told in pairs))
                return
            for told, passages in zip(batch.found, found, strict=True):
                told.set_result(passages)

    async def _ask_alone(self, asking: _Asking, query: str, told: Future[list[Passage]]) -> None:
        """Ask for one query, and tell what it found."""
        try:
            (found,) = await self._answer(asking, [query])
        except RetrieverError as error:
            told.set_exception(error)
        else:
            told.set_result(found)

    async def _answer(self, asking: _Asking, queries: Sequence[str]) -> list[list[Passage]]:
        """What each query found. Raises: RetrieverError; _RefusedError: each by itself might find something."""
        wait_s, failed = FIRST_WAIT_S, False
        while True:
            try:
                async with asyncio.timeout_at(asking.ends):
                    sent = {"queries": queries, "topk": asking.topk, "return_scores": True}
                    status, content = await _attempt(asking.http, self.url, sent)
                return [passages[: asking.topk] for passages in self._read(status, content, len(queries))]
            except TimeoutError:
                raise RetrieverError(f"{self.shown} gave no answer within {self._limit_s:g} s") from None
            except _PassingError as error:
                if failed and error.status == FAILED and len(queries) > 1:
                    raise _RefusedError(str(error)) from None
                if not asking.patient or asyncio.get_running_loop().time() + wait_s >= asking.ends:
                    raise RetrieverError(f"{self.shown}: {error}") from None
                failed = error.status == FAILED
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _read(self, status: int, content: bytes, queries: int) -> list[list[Passage]]:
        if status != 200:
            kind = _RefusedError if status in (400, 422) else RetrieverError
            raise kind(f"{self.shown} answered HTTP {status}: {_shown(content)}")
        try:
            answer = json_files.parse(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or "result" not in answer:
            raise RetrieverError(f"{self.shown} sent no JSON with a `result`: {_shown(content)}")
        try:
            return passages_of(answer["result"], queries)
        except RetrieverError as error:
            raise RetrieverError(f"{self.shown} sent results that cannot be read: {error}") from None


class _PassingError(Exception):
    """A fault that may pass; ``status`` is the answer's, if there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class _RefusedError(RetrieverError):
    """The server takes no such request, or fails at several queries together."""


async def _attempt(session: Any, url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    from rllib_lmgame.base import http_client

    try:
        reply = await http_client.ask(session, "POST", url, None, MOST_BYTES, json=body)
    except http_client.TooLong as error:
        raise RetrieverError(f"the retriever {error}") from None
    except http_client.NoAnswer as error:
        raise _PassingError(f"no answer: {printable(one_line(str(error)))[:SHOWN]}") from None
    if reply.status in PASSING:
        raise _PassingError(f"answered HTTP {reply.status}: {_shown(reply.content)}", reply.status)
    return reply.status, reply.content


def _shown(content: bytes) -> str:
    return printable(one_line(content[: 4 * SHOWN].decode("utf-8", "replace")))[:SHOWN]
