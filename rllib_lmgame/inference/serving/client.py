"""The engines as an env runner sees them: ``await client.generate(request)``.

Guarantees:

1. All requests made in one tick of the event loop travel in one message per engine.
2. ``generate`` never raises for one request: an engine that died, refused or gave no reply in time is a
   :class:`~rllib_lmgame.inference.protocol.Generation` with ``ENGINE_ERROR`` and a message that names it.
3. A game stays on the engine that holds its prefix while that is up; if none is up, requests wait for the first to
   return.
4. An engine that refuses to serve (weights did not arrive) gets no requests while another serves. If all refuse,
   requests fail at once.
5. What was given up when an event loop ended takes nothing from the next one: an old poll gets no new reply.
6. Engines are found by name, so a runner or an engine that was started again finds the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.text import first_line
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, decode_generations, encode_requests, failed
from rllib_lmgame.inference.serving.interruption import LOOK_EVERY_S, StopRequest


class AffinityRouter:
    """Keeps a game on the engine that holds its prefix; puts new games where least is going on.

    1. A key stays on its engine as long as that engine is up; no request goes to one that is down while another is up.
    2. A new key goes to the engine with the fewest requests in flight, then with the fewest keys.

    Of ``max_keys`` the one not used for longest is forgotten first. The client keeps ``up`` and ``in_flight`` true.
    """

    def __init__(self, num_engines: int, max_keys: int = 16_384) -> None:
        self.up = [True] * num_engines
        self.in_flight = [0] * num_engines
        self._num_keys = [0] * num_engines
        self._engine_of: OrderedDict[str, int] = OrderedDict()
        self._max_keys = max_keys

    def route(self, key: str | None) -> int | None:
        """Engine for a request of ``key`` (``None``: of no game in particular); ``None`` if every engine is down."""
        if key is not None and (engine := self._engine_of.get(key)) is not None:
            if self.up[engine]:
                self._engine_of.move_to_end(key)
                return engine
            self.forget(key)
        candidates = [e for e, up in enumerate(self.up) if up]
        if not candidates:
            return None
        engine = min(candidates, key=lambda e: (self.in_flight[e], self._num_keys[e], e))
        if key is not None:
            self._engine_of[key] = engine
            self._num_keys[engine] += 1
            if len(self._engine_of) > self._max_keys:
                self.forget(next(iter(self._engine_of)))
        return engine

    def forget(self, key: str) -> None:
        engine = self._engine_of.pop(key, None)
        if engine is not None:
            self._num_keys[engine] -= 1


logger = logging.getLogger(__name__)

POLL_WAIT_S = 5.0
"""Longest wait of one poll in the engine."""

POLL_GRACE_S = 30.0
"""A poll that takes this much longer than it should is asked again."""

RECONNECT_S = 0.25
"""Between two attempts to reach an engine that is down."""


ADAPTER_MARK = "/"
"""Between the names of an engine and of one of its adapters. RLlib allows it in no policy's name."""


def address(engine: str, adapter: str) -> str:
    """Name of an engine for a client that one of its adapters answers."""
    return f"{engine}{ADAPTER_MARK}{adapter}"


def engine_of(name: str) -> str:
    """The engine of an :func:`address`, or a plain name as it is. A client asks an engine for one adapter at most."""
    return name.partition(ADAPTER_MARK)[0]


@dataclass(slots=True)
class Waiting:
    answer: asyncio.Future[Generation]
    sent_at: float


@dataclass
class Link:
    index: int
    name: str
    handle: Any = None
    outbox: list[GenerationRequest] = field(default_factory=list)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    incarnation: str | None = None


class EngineClient:
    """A client of engine actors, given by name (see :func:`address`) or handle. Serves one event loop after another,
    not two at once.

    ``request_timeout_s`` is the longest wait for one reply.
    """

    def __init__(self, engines: Sequence[Any], *, request_timeout_s: float = 600.0) -> None:
        self._id = uuid.uuid4().hex
        self._timeout = request_timeout_s
        self._links = [
            Link(i, e if isinstance(e, str) else f"engine {i}", None if isinstance(e, str) else e)
            for i, e in enumerate(engines)
        ]
        self._by_name = [isinstance(e, str) for e in engines]
        self._router = AffinityRouter(len(self._links))
        self._loop: Any = None
        self._some_up = asyncio.Event()
        self._stop_request = StopRequest()

    async def generate(self, request: GenerationRequest, key: str | None = None) -> Generation:
        """Sample one reply; ``key`` is the game whose prefix it continues, by default the id up to its last ``/``."""
        self._attach()
        key = key or request.request_id.rpartition("/")[0] or None
        index = self._router.route(key)
        if index is None and (index := await self._route_when_up(key)) is None:
            names = ", ".join(k.name for k in self._links)
            error = f"no engine came up within {self._timeout:g} s, or until the run was stopped; waited for {names}"
            return failed(request.request_id, error, -1)
        link = self._links[index]
        if request.request_id in link.waiting:
            return failed(request.request_id, f"request id {request.request_id!r} is already on its way", -1)
        waiting = link.waiting[request.request_id] = Waiting(self._loop.create_future(), self._loop.time())
        if not link.outbox:
            self._loop.call_soon(self._send, link)
        link.outbox.append(request)
        self._router.in_flight[link.index] += 1
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            if link.waiting.pop(request.request_id, None) is not None and link.handle is not None:
                _abort(link.handle, self._id, [request.request_id])
            raise
        finally:
            self._router.in_flight[link.index] -= 1

    def forget(self, key: str) -> None:
        self._router.forget(key)

    def close(self) -> None:
        """Forget every request, here and in the engines."""
        for link in self._links:
            if link.handle is not None:
                _abort(link.handle, self._id, None)
            link.outbox.clear()
            link.waiting.clear()

    def _attach(self) -> None:
        """Begin with a clean slate when the event loop is another one than last time."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        self._loop = loop
        self._some_up = asyncio.Event()
        for link in self._links:
            if link.handle is not None and (link.waiting or link.task is not None):
                _abort(link.handle, self._id, None)  # Who still polls for them keeps the old mailbox.
            link.outbox, link.waiting, link.task = [], {}, None
            if link.handle is None:
                self._resolve(link)
            self._mark(link, link.handle is not None)
            if link.handle is None:
                link.task = loop.create_task(self._reconnect(link))

    async def _route_when_up(self, key: str | None) -> int | None:
        """The engine of a game once one is up; ``None`` if that took too long or the run is to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while (index := self._router.route(key)) is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY_S):
                            await self._some_up.wait()
                    if self._stop_request.overdue():
                        return None
                return index
        return None

    def _mark(self, link: Link, up: bool) -> None:
        self._router.up[link.index] = up
        if up:
            self._some_up.set()
        elif self._router.route(None) is None:
            self._some_up.clear()

    def _resolve(self, link: Link) -> None:
        import ray

        if not self._by_name[link.index]:
            return
        try:
            link.handle = ray.get_actor(engine_of(link.name))
        except ValueError:
            link.handle = None

    async def _reconnect(self, link: Link) -> None:
        while True:
            self._resolve(link)
            if link.handle is not None:
                try:
                    async with asyncio.timeout(POLL_GRACE_S):
                        status = await link.handle.status.remote()
                    well = status["ready"] and status["error"] is None and not status["needs_weights"]
                    if well and (status["refusal"] is None or self._router.route(None) is None):
                        break
                except Exception as error:
                    logger.debug("%s does not answer: %s", link.name, error)
            await asyncio.sleep(RECONNECT_S)
        link.task, link.incarnation = None, None
        self._mark(link, True)

    def _lost(self, link: Link, reason: str) -> None:
        """Answer everything that waits for an engine that died, and wait for it to come back."""
        self._mark(link, False)
        for request_id in list(link.waiting):
            self._answer(link, failed(request_id, f"{link.name}: {reason}", -1))
        link.outbox.clear()
        link.task = self._loop.create_task(self._reconnect(link))

    def _send(self, link: Link) -> None:
        batch = [r for r in link.outbox if r.request_id in link.waiting]
        link.outbox.clear()
        if not batch:
            return
        try:
            adapter = link.name.partition(ADAPTER_MARK)[2]
            link.handle.submit.remote(self._id, encode_requests(batch), *([adapter] if adapter else []))
        except Exception as error:
            said = f"{link.name}: the request could not be sent: {error}"
            for request in batch:
                self._answer(link, failed(request.request_id, said, -1))
            return
        if link.task is None or link.task.done():
            link.task = self._loop.create_task(self._receive(link))

    async def _receive(self, link: Link) -> None:
        while link.waiting:
            try:
                async with asyncio.timeout(POLL_WAIT_S + POLL_GRACE_S):
                    incarnation, refusal, packed = await link.handle.poll.remote(self._id, POLL_WAIT_S)
            except TimeoutError:
                self._check_timeouts(link)
                continue
            except Exception as error:
                self._lost(link, f"the engine died: {first_line(error)}")
                return
            generations = decode_generations(packed)
            if refusal is not None and any(g.error is not None for g in generations):
                self._mark(link, False)  # No new request to an engine that refuses, if there is another.
                if self._router.route(None) is None:
                    self._mark(link, True)
            for generation in generations:
                self._answer(link, generation)
            if not generations or link.incarnation not in (None, incarnation):
                try:
                    await self._check_missing(link, 0.0 if generations else POLL_WAIT_S)
                except Exception as error:
                    self._lost(link, f"the engine died: {first_line(error)}")
                    return
            link.incarnation = incarnation
            self._check_timeouts(link)
        link.task = None
        if not self._router.up[link.index]:
            link.task = self._loop.create_task(self._reconnect(link))

    async def _check_missing(self, link: Link, older_than_s: float) -> None:
        """An engine that was started again knows nothing of what the one before it was sent."""
        latest = self._loop.time() - max(older_than_s, 0.5)
        ids = [i for i, w in link.waiting.items() if w.sent_at < latest]
        if ids:
            async with asyncio.timeout(POLL_GRACE_S):
                lost = await link.handle.missing.remote(self._id, ids)
            error = f"{link.name}: the engine was started again and lost the request"
            for request_id in lost:
                self._answer(link, failed(request_id, error, -1))

    def _check_timeouts(self, link: Link) -> None:
        overdue = self._loop.time() - self._timeout
        for request_id, waiting in list(link.waiting.items()):
            if waiting.sent_at > overdue:
                break
            self._answer(link, failed(request_id, f"{link.name} gave no reply within {self._timeout:g} s", -1))
            _abort(link.handle, self._id, [request_id])

    def _answer(self, link: Link, generation: Generation) -> None:
        waiting = link.waiting.pop(generation.request_id, None)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(generation)


def _abort(handle: Any, *args: Any) -> None:
    try:
        handle.abort.remote(*args)
    except Exception as error:
        logger.debug("abort: %s", error)
