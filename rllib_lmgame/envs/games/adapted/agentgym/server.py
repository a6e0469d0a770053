"""A server of AgentGym as one process talks to it: requests, sessions, and that every session is closed.

Guarantees (each has a test):

1. A request takes at most ``timeout_s``, however slowly bytes come, and an answer has a bounded size.
2. A request is sent again, ``retries`` times, if the server says 503; also if the connection breaks, unless it was a
   step, which may have been taken.
3. A status other than 200, ``{"error": ...}``, a time-out or an answer of another form is a
   :class:`~rllib_lmgame.envs.contract.base.GameError` that names the address. A server that is not there or too busy
   is a :class:`~rllib_lmgame.base.step_timer.WaitedTooLong`: no level is to blame.
4. A session is closed when its game is, and at the end of a process that is not killed.
5. No two games of a process share a session, also where a server gives one out twice, or begins to count anew.
6. A token is sent to the address alone, and stands in no message.

Requests run in one thread with an event loop of its own. Whoever makes one waits in the thread of the call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_client import Reply, client
from rllib_lmgame.base.text import shown
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.on_server import (
    CHECK_S,
    BrokeOff,
    NotNow,
    Wrong,
    answer_of,
    patiently,
    refusal,
    without,
)
from rllib_lmgame.envs.support.loop_thread import submitted, waited_for

CLOSING_S = 5.0
"""Seconds a server has to close sessions before they are left to it."""

CREATE_S = 60.0
"""Seconds that a server has to open a session before a run, once it has answered."""

SLOW_S = 60.0
"""For so long nobody waits for a server to close sessions that has not closed one in time."""

_BUSY = 503


@dataclass
class Session:
    """A session: what requests carry to name it, and the ``start`` of the server in which it was opened."""

    fields: dict[str, Any]
    start: int = 0

    @property
    def name(self) -> str:
        return str(self.fields)


@dataclass
class _Held:
    """Names of the sessions of a server that games of this process have, how often it was started anew, its token."""

    names: set[str] = field(default_factory=set)
    start: int = 0
    token: str | None = None


_held: dict[str, _Held] = {}


@dataclass(frozen=True)
class Server:
    """A server.

    Args:
        url: Its address, with the path of the task.
        start: How it is started, for messages.
        timeout_s: Of one request.
        retries: Times a request is sent again.
        token: Sent with each request; ``None``: the server needs none.
    """

    url: str
    start: str
    timeout_s: float = 600.0
    retries: int = 10
    token: str | None = field(default=None, repr=False)

    def get(self, path: str, **query: Any) -> Any:
        """The answer to ``GET``. Raises: GameError, WaitedTooLong: see the top."""
        return self._answer("GET", f"{path}?{'&'.join(f'{key}={value}' for key, value in query.items())}", None)

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, once: bool = False) -> Any:
        """The answer to ``POST``; ``once``: not again after it may have been heard. Raises: as :meth:`get`."""
        return self._answer("POST", path, body, once=once)

    def hurried(self) -> Server:
        """The same with limits for a check before a run."""
        return replace(self, timeout_s=min(self.timeout_s, CREATE_S), retries=min(self.retries, 2))

    def check(self) -> None:
        """Ask whether it is there. Raises: ConfigError: says how it is started."""
        try:
            waited_for(_ask("GET", self._root, None, min(self.timeout_s, CHECK_S), self.token))
        except (NotNow, Wrong) as error:
            raise ConfigError("env_config.url", f"no server answers at {self.url} ({error}); {self._how}") from None

    def take(self, session: Session, *, closes: bool, limited: bool) -> bool:
        """Take a session that was opened for one game alone; whether it is no other's.

        ``closes``: the server knows ``POST /close`` with the session. ``limited``: it has so many sessions, then gives
        out old ones. A server of another kind that names a session again was started anew, and the old ones are gone.
        """
        with _lock:
            held = _held.setdefault(self.url, _Held())
            if session.name in held.names and limited:
                return False
            anew = session.name in held.names
            if anew:
                held.start += 1
                held.names.clear()
            held.names.add(session.name)
            held.token = self.token
            session.start = held.start
            if anew:
                for key in [key for key in _open if key[0] == self.url]:
                    del _open[key]
            if closes:
                _open[self.url, session.name] = session.fields
        return True

    def knows(self, session: Session) -> bool:
        """Whether the server has not been started anew since, as far as can be seen."""
        with _lock:
            return _held.setdefault(self.url, _Held()).start == session.start

    def close(self, session: Session) -> None:
        """Give a session back: it is closed as far as the server does so, in seconds at most."""
        with _lock:
            held = _held.setdefault(self.url, _Held())
            if held.start != session.start:
                return
            held.names.discard(session.name)
            if _open.pop((self.url, session.name), None) is None:
                return
        done = submitted(_close(self.url, session.fields))
        if _slow.get(self.url, 0.0) > time.monotonic():
            return
        try:
            done.result(CLOSING_S + 1)
        except TimeoutError:
            _slow[self.url] = time.monotonic() + SLOW_S

    @property
    def _root(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}/"

    @property
    def _how(self) -> str:
        return f"start one with: {self.start} --host 127.0.0.1 --port {urlsplit(self.url).port or 80}"

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None, *, once: bool = False) -> Any:
        reply = self._attempts(method, path, body, once)
        status, content = reply.status, reply.content
        try:
            answer = json_files.parse(content)
        except ValueError:
            answer = None
        if status in (401, 403):
            raise self._error(path, refusal(status))
        if status == 200 and answer is None:
            raise self._error(path, f"answers what is no JSON: {_said(content)}")
        if status != 200 or (isinstance(answer, Mapping) and answer.get("error")):
            why = answer["error"] if isinstance(answer, Mapping) and "error" in answer else _said(content)
            raise self._error(path, f"answers {f'status {status}: ' * (status != 200)}{shown(why, 300)}")
        return answer

    def _attempts(self, method: str, path: str, body: Mapping[str, Any] | None, once: bool) -> Reply:
        """The answer after as many tries as it takes and are allowed."""

        def asked() -> Reply:
            try:
                reply = waited_for(_ask(method, f"{self.url}{path}", body, self.timeout_s, self.token))
            except BrokeOff as error:
                raise error if once else NotNow(str(error)) from None
            except NotNow as error:
                raise NotNow(f"{error}; {self._how}") from None
            if reply.status == _BUSY:
                raise NotNow("is busy (503)")
            return reply

        try:
            return patiently(asked, f"{self.url}{path.partition('?')[0]}", self.retries)
        except Wrong as error:
            raise self._error(path, str(error)) from None

    def _error(self, path: str, problem: str) -> GameError:
        return GameError(f"{self.url}{path.partition('?')[0]} {without(self.token, problem)}")


def _said(content: bytes) -> str:
    return content[:200].decode("utf-8", "replace").strip().partition("\n")[0] or "nothing"


# -- the thread that asks ---------------------------------------------------------------------------------------------


_lock = threading.Lock()
_open: dict[tuple[str, str], dict[str, Any]] = {}
"""Sessions that are to be closed, by address and name."""
_client: aiohttp.ClientSession | None = None
_slow: dict[str, float] = {}
"""Servers that did not close a session in time -> until when nobody waits for them to close others."""
_of_parents: list[aiohttp.ClientSession | None] = []
"""Kept, since a client that goes without being closed complains of it."""


def _forget() -> None:
    """A forked child has none of its parent's threads, and must not close its sessions."""
    global _client, _lock
    _of_parents.append(_client)
    _client, _lock = None, threading.Lock()
    _held.clear()
    _open.clear()


os.register_at_fork(after_in_child=_forget)


async def _ask(method: str, url: str, body: Mapping[str, Any] | None, limit_s: float, token: str | None) -> Reply:
    """One answer. Raises: NotNow, Wrong."""
    global _client
    if _client is None:
        # A connection that the server is about to close would lose a step. Names are remembered: at the end of the
        # process nobody can be asked any more.
        _client = client(connector=aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=None))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await answer_of(_client, method, url, limit_s, json=body, headers=headers)


async def _close(url: str, session: Mapping[str, Any]) -> None:
    """Close a session, whatever comes of it."""
    with contextlib.suppress(NotNow, Wrong):
        held = _held.get(url)
        await _ask("POST", f"{url}/close", session, CLOSING_S, None if held is None else held.token)


@atexit.register
def _close_all() -> None:
    left: list[Future[Any]] = [submitted(_close(url, session)) for (url, _), session in _open.items()]
    if _client is not None:
        left.append(submitted(_after(tuple(left), _client)))
    wait(left, CLOSING_S)


async def _after(requests: Sequence[Future[Any]], http: aiohttp.ClientSession) -> None:
    """Close the client once the requests are through."""
    await asyncio.gather(*map(asyncio.wrap_future, requests), return_exceptions=True)
    await http.close()
