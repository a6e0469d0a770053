"""A retriever served over HTTP, in the protocol of Search-R1 and SkyRL.

1. Requests that come while a search runs are searched together, next.
2. A request that cannot be read is answered with a reason (400), and costs no search.
3. A query that the search fails at costs its own request alone (500): the others are searched again without it.
4. Pages of web sites are refused (403); so is, where only this machine is listened to, who calls it by another name. A
   request that does not come to its end is given up (408).
5. When it stops, no new request is taken, and those that came are answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from aiohttp import web

from rllib_lmgame.base import json_files
from rllib_lmgame.base.http_server import guard, is_loopback, listen
from rllib_lmgame.envs.support.retrieval.passages import PassageFile, passage_of

MOST_QUERIES, MOST_RESULTS, LONGEST_QUERY = 4096, 100, 10_000
MOST_BYTES = 16 << 20
AT_ONCE = 512
"""Queries of one search, unless a single request has more."""
STOP_S = 60.0


class Searched(Protocol):
    """The search engine that is served."""

    corpus: PassageFile

    def rows(self, queries: Sequence[str], topk: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of passages ``[queries, topk]``, -1 for none, and their scores."""


@dataclass
class _Request:
    queries: list[str]
    topk: int
    scores: bool
    found: asyncio.Future[list[list[Any]]]


class RequestError(ValueError):
    """A request that cannot be read."""


class RetrieverServer:
    """Serves ``POST /retrieve`` and ``GET /``.

    Args:
        searched: What searches; it is called from one thread.
        topk: Results for a request that names no number.
    """

    def __init__(self, searched: Searched, topk: int) -> None:
        self._searched, self._topk = searched, topk
        self._queue: asyncio.Queue[_Request] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "search")
        self.answered = 0

    async def run(self, host: str, port: int, ready: Any) -> None:
        """Serve until cancelled; ``ready`` is called with the port when requests are taken.

        Raises:
            ConfigError: the address is taken, or not this machine's.
        """
        app = self.app(host)
        worker = asyncio.create_task(self._work())
        try:
            await listen(app, host, port, ready, STOP_S)
        finally:
            worker.cancel()
            self._thread.shutdown(wait=False)

    def app(self, host: str) -> web.Application:
        """The application that is served at ``host``."""
        app = web.Application(client_max_size=MOST_BYTES, middlewares=[guard(None, only_here=is_loopback(host))])
        app.add_routes([web.get("/", self._about), web.post("/retrieve", self._retrieve)])
        return app

    async def _about(self, request: web.Request) -> web.Response:
        return web.json_response({"passages": len(self._searched.corpus), "topk": self._topk})

    async def _retrieve(self, request: web.Request) -> web.Response:
        try:
            queries, topk, scores = self._read(await request.read())
        except RequestError as error:
            return web.json_response({"error": str(error)}, status=400)
        found: asyncio.Future[list[list[Any]]] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Request(queries, topk, scores, found))
        try:
            result = await found
        except Exception as error:
            return web.json_response({"error": str(error)}, status=500)
        self.answered += 1
        return web.Response(body=json.dumps({"result": result}).encode(), content_type="application/json")

    def _read(self, body: bytes) -> tuple[list[str], int, bool]:
        try:
            asked = json_files.parse(body)
        except ValueError:
            raise RequestError("the request is no JSON") from None
        if not isinstance(asked, dict):
            raise RequestError('the request is no JSON object like {"queries": ["..."], "topk": 3}')
        queries = asked.get("queries", asked.get("query"))
        queries = [queries] if isinstance(queries, str) else queries
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise RequestError("`queries` must be a list of texts (or `query` a text)")
        if len(queries) > MOST_QUERIES:
            raise RequestError(f"{len(queries)} queries; {MOST_QUERIES} are allowed")
        topk = asked.get("topk") or self._topk
        if not isinstance(topk, int) or isinstance(topk, bool) or not 1 <= topk <= MOST_RESULTS:
            raise RequestError(f"`topk` must be a whole number from 1 to {MOST_RESULTS}")
        texts = [query[:LONGEST_QUERY].encode("utf-8", "replace").decode() for query in queries]
        return texts, topk, bool(asked.get("return_scores", False))

    async def _work(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty() and sum(len(each.queries) for each in batch) < AT_ONCE:
                batch.append(self._queue.get_nowait())
            await self._search(batch)

    async def _search(self, batch: Sequence[_Request]) -> None:
        """Search for requests together; for each alone if that fails."""
        queries = [query for each in batch for query in each.queries]
        topk = max(each.topk for each in batch)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._found, queries, topk)
        except Exception as error:
            if len(batch) > 1:
                for each in batch:
                    await self._search([each])
            elif not batch[0].found.done():
                batch[0].found.set_exception(error)
            return
        for each in batch:
            own, found = found[: len(each.queries)], found[len(each.queries) :]
            if not each.found.done():  # Somebody waits for it still.
                best = [results[: each.topk] for results in own]
                each.found.set_result(best if each.scores else [[x["document"] for x in results] for results in best])

    def _found(self, queries: list[str], topk: int) -> list[list[dict[str, Any]]]:
        rows, scores = self._searched.rows(queries, topk)
        return [
            [
                {"document": self._document(int(row)), "score": float(score)}
                for row, score in zip(*each, strict=True)
                if row >= 0
            ]
            for each in zip(rows, scores, strict=True)
        ]

    def _document(self, row: int) -> dict[str, Any]:
        record, where = self._searched.corpus.record(row)
        return {"id": str(record.get("id", row)), "contents": passage_of(record, "", where).contents}
