"""A retriever behind an address, in the protocol of Search-R1 and SkyRL.

1. Searches of a process that come within :data:`GATHER_S` of each other are one request.
2. A search ends within its time limit, with passages or with :class:`RetrieverError`, however slowly bytes may come.
3. Statuses 500, 502, 503 and 504 and broken connections are tried again, ever later, while there is time. Other
   statuses and answers that are none are not.
4. A query that the server refuses (400, 422) fails its own search alone: the others of the request are asked again.
5. No redirect is followed, no proxy asked, no cookie kept.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rllib_lmgame import json_files
from rllib_lmgame.envs.support.retrieval.passages import Passage, passage_of
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.text import one_line, printable
from rllib_lmgame.waiting import WaitedTooLong, waiting

GATHER_S = 0.02
SLACK_S = 5.0
"""What a search may take beyond its limit: the gathering, and what cannot be stopped."""
PASSING = (500, 502, 503, 504)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 8.0
MOST_BYTES = 32 << 20
SHOWN = 200
"""Characters of a server's answer that are told."""


class RetrieverError(WaitedTooLong):
    """A search got no answer that can be used."""


Found = list[Passage] | RetrieverError
"""What one query found, or why nothing can be said of it."""


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
    found: Future[list[Found]] = field(default_factory=Future)


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
        self._single: bool | None = None
        """Whether the server takes one query a request; ``None``: that is not known yet."""
        self._lock = threading.Lock()
        self._open: dict[int, _Batch] = {}

    def check(self, topk: int) -> None:
        """Search once, to see that somebody answers in this protocol.

        Raises:
            ConfigError: nobody does.
        """
        try:
            _usable(self._ask(["capital"], topk, patient=False))
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
            start = len(batch.queries)
            batch.queries += queries
        if first:  # A thread of its own: callers may be given up, or have a running event loop.
            try:
                threading.Thread(target=self._send, args=(batch,), daemon=True, name="retriever").start()
            except RuntimeError as error:
                with self._lock:
                    self._open.pop(topk, None)
                batch.found.set_exception(RetrieverError(f"no search could be started: {error}"))
        try:
            with waiting():  # The limit is this object's own.
                found = batch.found.result(self._limit_s + SLACK_S)
            return _usable(found[start : start + len(queries)])
        except TimeoutError:  # A name that is looked up for ever.
            raise RetrieverError(f"{self.shown} gave no answer within {self._limit_s:g} s") from None

    def _send(self, batch: _Batch) -> None:
        try:
            self._gather()
        finally:
            with self._lock:
                del self._open[batch.topk]
        try:
            batch.found.set_result(self._ask(batch.queries, batch.topk))
        except BaseException as error:
            batch.found.set_exception(error)

    def _ask(self, queries: Sequence[str], topk: int, patient: bool = True) -> list[Found]:
        together = [{"queries": queries}]
        singly = [{"query": query} for query in queries]
        alone = [{"queries": [query]} for query in queries] if len(queries) > 1 else []
        forms = {None: (together, singly, alone), False: (together, alone), True: (singly,)}[self._single]
        found: list[Found] = []
        for asked in (form for form in forms if form):
            found = self._ask_as(asked, len(queries), topk, patient)
            if any(isinstance(each, list) for each in found):
                self._single = "query" in asked[0]
            if not all(isinstance(each, _RefusedError) for each in found):
                break
        return found

    def _ask_as(self, asked: Sequence[dict[str, Any]], queries: int, topk: int, patient: bool) -> list[Found]:
        bodies = [{**what, "topk": topk, "return_scores": True} for what in asked]
        try:
            answers = asyncio.run(_in_time(self.url, bodies, self._limit_s, patient))
        except TimeoutError:
            raise RetrieverError(f"{self.shown} gave no answer within {self._limit_s:g} s") from None
        except _PassingError as error:
            raise RetrieverError(f"{self.shown}: {error}") from None
        each = queries // len(answers)
        found: list[Found] = []
        for answer in answers:
            try:
                found += [passages[:topk] for passages in self._read(*answer, each)]
            except RetrieverError as error:
                found += [error] * each
        return found

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


def _usable(found: Sequence[Found]) -> list[list[Passage]]:
    """What queries found. Raises: RetrieverError: of one it cannot be said."""
    for each in found:
        if isinstance(each, RetrieverError):
            raise each
    return list(found)  # type: ignore[arg-type]


class _PassingError(Exception):
    """A fault that may pass."""


class _RefusedError(RetrieverError):
    """The server takes no such request."""


async def _in_time(url: str, bodies: list[dict[str, Any]], limit_s: float, patient: bool) -> list[tuple[int, bytes]]:
    """Status and content of the answer to each. Raises: TimeoutError; _PassingError if it did not pass in time."""
    import aiohttp

    ends = asyncio.get_running_loop().time() + limit_s
    options: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(), "cookie_jar": aiohttp.DummyCookieJar()}
    async with asyncio.timeout_at(ends), aiohttp.ClientSession(trust_env=False, **options) as session:
        return await asyncio.gather(*(_answer(session, url, body, ends, patient) for body in bodies))


async def _answer(session: Any, url: str, body: dict[str, Any], ends: float, patient: bool) -> tuple[int, bytes]:
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await _attempt(session, url, body)
        except _PassingError:
            if not patient or asyncio.get_running_loop().time() + wait_s >= ends:
                raise
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


async def _attempt(session: Any, url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    import aiohttp

    try:
        async with session.post(url, json=body, allow_redirects=False) as response:
            content = bytearray()
            async for part in response.content.iter_chunked(1 << 16):
                content += part
                if len(content) > MOST_BYTES:
                    raise RetrieverError(f"the retriever sent more than {MOST_BYTES:,} bytes")
            if response.status in PASSING:
                raise _PassingError(f"answered HTTP {response.status}: {_shown(content)}")
            return response.status, bytes(content)
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise _PassingError(f"no answer: {printable(one_line(str(error) or type(error).__name__))[:SHOWN]}") from None


def _shown(content: bytes | bytearray) -> str:
    return printable(one_line(content[: 4 * SHOWN].decode("utf-8", "replace")))[:SHOWN]
