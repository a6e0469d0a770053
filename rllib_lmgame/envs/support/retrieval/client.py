"""A retriever behind an address, in the protocol of Search-R1 and SkyRL.

1. Searches of a process that come within :data:`GATHER_S` of each other are one request.
2. A search ends within its time limit, with passages or with :class:`RetrieverError`, however slowly bytes may come.
3. Statuses 500, 502, 503 and 504 and broken connections are tried again, ever later, while there is time. Other
   statuses and answers that are none are not.
4. A query that the server refuses (400, 422) or fails at (500) fails its own search alone. The others of the request
   are asked again without it, and get their passages as soon as these are there.
5. No redirect is followed, no proxy asked, no cookie kept.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
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
    found: list[Future[list[Passage]]] = field(default_factory=list)
    """Of each query; what was found is told at once, a failure when all have been asked."""

    def fail(self, error: BaseException) -> None:
        """This is why nothing is known of those that have not been told of."""
        for each in self.found:
            if not each.done():
                each.set_exception(error)


@dataclass(frozen=True)
class _Form:
    """How the server is asked, and until when.

    Attributes:
        single: One query a request.
        parts: Places of the queries of each request.
        ends: Time of the event loop.
        patient: Faults that may pass are waited for.
    """

    batch: _Batch
    single: bool
    parts: Sequence[range]
    session: Any = None
    ends: float = 0.0
    patient: bool = True

    def body(self, places: range) -> dict[str, Any]:
        queries = [self.batch.queries[place] for place in places]
        asked: dict[str, Any] = {"query": queries[0]} if self.single else {"queries": queries}
        return {**asked, "topk": self.batch.topk, "return_scores": True}


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
            batch = _Batch(topk, ["capital"], [Future()])
            self._ask(batch, patient=False)
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
            self._ask(batch)
        except BaseException as error:
            batch.fail(error)

    def _ask(self, batch: _Batch, patient: bool = True) -> None:
        """Ask, and tell what each query found; of a server that is not known yet, in one form after another."""
        whole, alone = [range(len(batch.queries))], [range(place, place + 1) for place in range(len(batch.queries))]
        together, singly = _Form(batch, False, whole, patient=patient), _Form(batch, True, alone, patient=patient)
        apart = [replace(together, parts=alone)] if len(alone) > 1 else []
        found: list[Found] = []
        for form in {None: [together, singly, *apart], False: [together, *apart], True: [singly]}[self._single]:
            found = asyncio.run(self._ask_as(form))
            if any(isinstance(each, list) for each in found):
                self._single = form.single
            if not all(isinstance(each, _RefusedError) for each in found):
                break
        for told, each in zip(batch.found, found, strict=True):
            if isinstance(each, RetrieverError):
                told.set_exception(each)

    async def _ask_as(self, form: _Form) -> list[Found]:
        """What each query found in this form."""
        import aiohttp

        ends = asyncio.get_running_loop().time() + self._limit_s
        options: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(), "cookie_jar": aiohttp.DummyCookieJar()}
        async with aiohttp.ClientSession(trust_env=False, **options) as session:
            form = replace(form, session=session, ends=ends)
            found = await asyncio.gather(*(self._answer(form, places) for places in form.parts))
        return [each for part in found for each in part]

    async def _answer(self, form: _Form, places: range, broken: bool = False) -> list[Found]:
        """What the queries of these places found.

        Args:
            broken: The server has failed at them beside others: if it fails again, each half is asked for itself.
        """
        wait_s = FIRST_WAIT_S
        while True:
            try:
                async with asyncio.timeout_at(form.ends):
                    answer = await _attempt(form.session, self.url, form.body(places))
                found = [passages[: form.batch.topk] for passages in self._read(*answer, len(places))]
                for place, passages in zip(places, found, strict=True):
                    form.batch.found[place].set_result(passages)
                return list(found)
            except TimeoutError:
                return [RetrieverError(f"{self.shown} gave no answer within {self._limit_s:g} s")] * len(places)
            except RetrieverError as error:
                return [error] * len(places)
            except _PassingError as error:
                if broken and error.status == FAILED and len(places) > 1:
                    half = len(places) // 2
                    parts = (self._answer(form, part, broken=True) for part in (places[:half], places[half:]))
                    return [each for part in await asyncio.gather(*parts) for each in part]
                if not form.patient or asyncio.get_running_loop().time() + wait_s >= form.ends:
                    return [RetrieverError(f"{self.shown}: {error}")] * len(places)
                broken = error.status == FAILED
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
    """The server takes no such request."""


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
                raise _PassingError(f"answered HTTP {response.status}: {_shown(content)}", response.status)
            return response.status, bytes(content)
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise _PassingError(f"no answer: {printable(one_line(str(error) or type(error).__name__))[:SHOWN]}") from None


def _shown(content: bytes | bytearray) -> str:
    return printable(one_line(content[: 4 * SHOWN].decode("utf-8", "replace")))[:SHOWN]
