"""A server of AgentGym as one process talks to it: requests, sessions, and that every session is closed.

Guarantees (each has a test):

1. A request takes at most ``timeout_s``, however slowly bytes come, and an answer at most :data:`MOST_BYTES`.
2. A request is sent again, ``retries`` times, if the server says 503; also if the connection breaks, unless it was a
   step, which may have been taken.
3. A status other than 200, ``{"error": ...}``, a time-out or an answer of another form is a
   :class:`~rllib_lmgame.envs.contract.base.GameError` that names the address. A server that is not there or too busy
   is a :class:`~rllib_lmgame.base.step_timer.WaitedTooLong`: no level is to blame.
4. A session is closed when its game is, and at the end of the process. What a killed process left open is closed by the
   next one on its machine that opens a session (:mod:`.left_open`).
5. No two games of a process share a session, also where a server gives one out twice, or begins to count anew.
6. A token is sent to the address alone, and stands in no message and no file. What a killed process left open on a
   server with a token is closed by one that plays there with it, and otherwise left to that server's own limits.

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
from rllib_lmgame.base.step_timer import WaitedTooLong, waiting
from rllib_lmgame.base.text import in_words, shown
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.agentgym.left_open import LeftOpen
from rllib_lmgame.envs.games.adapted.on_server import CHECK_S, LONGEST_PAUSE_S, MOST_BYTES, refusal, without
from rllib_lmgame.envs.support.loop_thread import submitted, waited_for

CLOSING_S = 5.0
"""Seconds a server has to close sessions before they are left to it."""

CREATE_S = 60.0
"""Seconds that a server has to open a session before a run, once it has answered."""

SLOW_S = 60.0
"""For so long nobody waits for a server to close sessions that has not closed one in time."""

_BUSY = 503
CLOSE = "/close"


class _Unreachable(Exception):
    """Nothing was sent: there is no such server now."""


class _Broken(Exception):
    """The connection broke."""


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
        except TimeoutError:
            raise ConfigError("env_config.url", f"{self.url} does not answer; {self._how}") from None
        except (_Unreachable, _Broken, ValueError) as error:
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
        asker = _the_asker()
        if anew:
            asker.left_open.forget(self.url + CLOSE)
        if closes:
            asker.left_open.add(self.url + CLOSE, session.fields)
            for url, body in asker.left_open.take_over():
                submitted(_quietly(url, body))
        return True

    def knows(self, session: Session) -> bool:
        """Whether the server has not been started anew since, as far as can be seen."""
        with _lock:
            return _held.setdefault(self.url, _Held()).start == session.start

    def close(self, session: Session) -> None:
        """Give a session back: it is closed as far as the server does so, in seconds at most."""
        with _lock:
            held = _held.setdefault(self.url, _Held())
            if held.start == session.start:
                held.names.discard(session.name)
        asker, url = _the_asker(), self.url + CLOSE
        if not self.knows(session) or not asker.left_open.remove(url, session.fields):
            return
        done = submitted(_quietly(url, session.fields))
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
        status, content = self._attempts(method, path, body, once)
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

    def _attempts(self, method: str, path: str, body: Mapping[str, Any] | None, once: bool) -> tuple[int, bytes]:
        """Status and content after as many tries as it takes and are allowed."""
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                with waiting():
                    time.sleep(min(LONGEST_PAUSE_S, 0.1 * 2 ** (attempt - 1)))
            try:
                with waiting():
                    status, content = waited_for(_ask(method, f"{self.url}{path}", body, self.timeout_s, self.token))
            except TimeoutError:
                raise self._error(path, f"gave no whole answer in timeout_s={self.timeout_s:g}") from None
            except _Unreachable as error:
                problem = f"no server answers at {self.url} ({error}); {self._how}"
            except _Broken as error:
                if once:
                    raise self._error(path, f"broke off: {error}") from None
                problem = f"{self.url}{path.partition('?')[0]} broke off: {error}"
            except ValueError as error:
                raise self._error(path, str(error)) from None
            else:
                if status != _BUSY:
                    return status, content
                problem = f"{self.url}{path.partition('?')[0]} is busy (503)"
        tries = f" {self.retries + 1} times" if self.retries else ""
        raise WaitedTooLong(f"{problem}{tries and f' (asked{tries})'}")

    def _error(self, path: str, problem: str) -> GameError:
        return GameError(f"{self.url}{path.partition('?')[0]} {without(self.token, problem)}")


def _said(content: bytes) -> str:
    return content[:200].decode("utf-8", "replace").strip().partition("\n")[0] or "nothing"


# -- the thread that asks ---------------------------------------------------------------------------------------------


class _Asker:
    """The client in the loop of this process."""

    def __init__(self) -> None:
        self.client: aiohttp.ClientSession | None = None
        self.left_open = LeftOpen()

    def session(self) -> aiohttp.ClientSession:
        """Only in the loop."""
        if self.client is None:
            self.client = aiohttp.ClientSession(
                # A connection that the server is about to close would lose a step. Names are remembered: at the end of
                # the process nobody can be asked any more.
                connector=aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
            )
        return self.client


_lock = threading.Lock()
_asker: _Asker | None = None
_slow: dict[str, float] = {}
"""Servers that did not close a session in time -> until when nobody waits for them to close others."""


def _the_asker() -> _Asker:
    global _asker
    with _lock:
        if _asker is None:
            _asker = _Asker()
            atexit.register(_close_all)
        return _asker


_of_parents: list[_Asker] = []
"""Kept, since a client that goes without being closed complains of it."""


def _forget() -> None:
    """A forked child has none of its parent's threads, and must not close its sessions."""
    global _asker, _lock
    if _asker is not None:
        _asker.left_open.abandon()
        _of_parents.append(_asker)
    _asker, _lock = None, threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget)


async def _ask(
    method: str, url: str, body: Mapping[str, Any] | None, limit_s: float, token: str | None
) -> tuple[int, bytes]:
    """Status and content of one answer. Raises: TimeoutError, _Unreachable, _Broken; ValueError: it is too long."""
    content = bytearray()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    limit = aiohttp.ClientTimeout(total=None)
    client = _the_asker().session()
    try:
        async with asyncio.timeout(limit_s):
            async with client.request(
                method, url, json=body, headers=headers, timeout=limit, allow_redirects=False
            ) as response:
                async for part in response.content.iter_any():
                    content += part
                    if len(content) > MOST_BYTES:
                        raise ValueError(f"answers more than {MOST_BYTES:,} bytes")
                return response.status, bytes(content)
    except aiohttp.ClientConnectorError as error:
        code = getattr(getattr(error, "os_error", None), "errno", None) or 0
        raise _Unreachable(os.strerror(code) if code > 0 else in_words(error)) from None
    except aiohttp.InvalidURL as error:
        raise _Unreachable(in_words(error)) from None
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise _Broken(in_words(error)) from None


async def _quietly(url: str, body: Mapping[str, Any]) -> None:
    """Ask, whatever comes of it."""
    with contextlib.suppress(TimeoutError, _Unreachable, _Broken, ValueError):
        held = _held.get(url.removesuffix(CLOSE))
        await _ask("POST", url, body, CLOSING_S, None if held is None else held.token)


def _close_all() -> None:
    """At the end of the process."""
    asker = _asker
    if asker is None:  # A forked child has none.
        return
    left: list[Future[Any]] = [submitted(_quietly(url, body)) for url, body in asker.left_open.remaining()]
    if asker.client is not None:
        left.append(submitted(_after(tuple(left), asker.client)))
    wait(left, CLOSING_S)
    asker.left_open.end()


async def _after(requests: Sequence[Future[Any]], client: aiohttp.ClientSession) -> None:
    """Close the client once the requests are through."""
    await asyncio.gather(*map(asyncio.wrap_future, requests), return_exceptions=True)
    await client.close()
