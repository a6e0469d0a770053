"""A session with a server of OpenEnv 0.10: its WebSocket, on which each message has one answer.

Guarantees (each has a test):

1. A message and its answer take at most ``timeout_s``, and an answer has at most ``MOST_BYTES``.
2. A server that is not there, or whose sessions are all taken, is asked again, ``retries`` times; then it is a
   :class:`~rllib_lmgame.base.step_timer.WaitedTooLong`: no level is to blame.
3. An error, a connection that breaks, a time-out, an answer of another form or one that nobody asked for is a
   :class:`~rllib_lmgame.envs.contract.base.GameError` that names the address, and the session is given up. A value in
   an action that the server says is none of its field's is an :class:`~rllib_lmgame.envs.contract.base.InvalidAction`,
   and the session goes on.
4. A session is closed when its game is, and at the end of the process. Between messages pings are answered.
5. The token is sent to the address alone, and stands in no message. A server that sends a client elsewhere is not
   followed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import weakref
from collections.abc import Mapping
from concurrent.futures import wait
from typing import Any

import aiohttp

from rllib_lmgame.base import json_files
from rllib_lmgame.base.http_client import client
from rllib_lmgame.base.step_timer import waiting
from rllib_lmgame.base.text import in_words, shown
from rllib_lmgame.envs.contract.base import GameError, InvalidAction
from rllib_lmgame.envs.games.adapted.on_server import MOST_BYTES, NotNow, Wrong, answer_of, patiently, refusal, without
from rllib_lmgame.envs.support.loop_thread import submitted, waited_for

CLOSING_S = 5.0
FULL = "CAPACITY_REACHED"
"""Code of the error of a server whose sessions are all taken."""
INVALID = "VALIDATION_ERROR"
"""Code of the error of a message whose values cannot be."""


class Connection:
    """A session, which begins with its first ``reset``.

    Args:
        url: Address of the environment.
        token: Sent with each request; ``None``: the server needs none.
        timeout_s: Of one message.
        retries: Times that a session is asked for again.
    """

    def __init__(self, url: str, token: str | None, timeout_s: float, retries: int) -> None:
        self.url, self.timeout_s, self.retries = url, timeout_s, retries
        self._token = token
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._answers: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None
        _open.add(self)

    def reset(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Begin an episode. Raises: GameError, WaitedTooLong: see the top."""
        return patiently(lambda: self._told({"type": "reset", "data": dict(data)}, opens=True), self.url, self.retries)

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        """Act. Raises: GameError, InvalidAction."""
        try:
            return self._told({"type": "step", "data": dict(action)}, opens=False)
        except NotNow as error:
            raise GameError(f"{self.url} {error}") from None

    def get(self, path: str) -> Any:
        """The JSON that ``GET`` answers. Raises: GameError, WaitedTooLong: the server is not there."""
        try:
            return patiently(lambda: waited_for(self._get(path)), self.url, self.retries)
        except Wrong as error:
            raise GameError(f"{self.url}{path} {error}") from None

    def close(self) -> None:
        """End the session, in seconds at most."""
        if self._http is not None:
            with contextlib.suppress(TimeoutError):
                submitted(self._close()).result(CLOSING_S)

    def _told(self, message: Mapping[str, Any], opens: bool) -> Mapping[str, Any]:
        """An observation. Raises: NotNow, GameError, InvalidAction."""
        try:
            with waiting():
                return waited_for(self._ask(message, opens))
        except NotNow as error:
            self.close()
            raise NotNow(without(self._token, error)) from None
        except Wrong as error:
            self.close()
            raise GameError(f"{self.url} {without(self._token, error)}") from None

    # -- in the loop --------------------------------------------------------------------------------------------------

    async def _get(self, path: str) -> Any:
        async with client(self._headers) as http:
            reply = await answer_of(http, "GET", self.url + path, self.timeout_s)
        if reply.status != 200:
            raise Wrong(refusal(reply.status))
        try:
            return json_files.parse(reply.content)
        except ValueError:
            raise Wrong("answers what is no JSON") from None

    async def _ask(self, message: Mapping[str, Any], opens: bool) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(self.timeout_s):
                if opens and (self._socket is None or self._socket.closed):
                    await self._close()
                    await self._connect()
                if self._socket is None:
                    raise Wrong("has no session any more")
                if not self._answers.empty():
                    unasked = self._answers.get_nowait()
                    if unasked.type in _DATA:
                        raise Wrong(f"said what it was not asked: {shown(unasked.data, 200)}")
                    return _observation(unasked, {})
                await self._socket.send_json(message)
                answer = await self._answers.get()
        except TimeoutError:
            raise Wrong(f"gave no answer in timeout_s={self.timeout_s:g}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Wrong(f"broke off: {in_words(error)}") from None
        return _observation(answer, {} if opens else message["data"])

    async def _connect(self) -> None:
        stays = aiohttp.TraceConfig()
        stays.on_request_redirect.append(_refuse_redirect)
        self._http = client(self._headers, trace_configs=[stays])
        try:
            self._socket = await self._http.ws_connect(f"{self.url}/ws", max_msg_size=MOST_BYTES)
        except aiohttp.WSServerHandshakeError as error:
            raise Wrong(refusal(error.status)) from None
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise NotNow(f"is not there ({in_words(error)})") from None
        self._answers = asyncio.Queue()
        self._reader = asyncio.create_task(self._read(self._socket, self._answers))

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, answers: asyncio.Queue[aiohttp.WSMessage]) -> None:
        """Pings are answered only while somebody reads; of what nobody asked for, one message is kept."""
        while answers.qsize() < 2:
            message = await socket.receive()
            answers.put_nowait(message)
            if message.type not in _DATA:
                return

    async def _close(self) -> None:
        reader, socket, http = self._reader, self._socket, self._http
        self._reader = self._socket = self._http = None
        if reader is not None:
            reader.cancel()
        with contextlib.suppress(aiohttp.ClientError, OSError):
            if socket is not None and not socket.closed:
                async with asyncio.timeout(CLOSING_S):
                    await socket.send_json({"type": "close"})
                    await socket.close()
        if http is not None:
            await http.close()


_DATA = (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)


async def _refuse_redirect(session: Any, context: Any, params: aiohttp.TraceRequestRedirectParams) -> None:
    raise Wrong(refusal(params.response.status))


def _observation(message: aiohttp.WSMessage, action: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the answer to ``action`` tells; that of ``reset`` is empty.

    Raises: NotNow: the server is full; InvalidAction: a value of the action cannot be; Wrong: it is no observation.
    """
    if message.type not in _DATA:
        raise Wrong(f"ended the session (code {message.data})" if message.data else "ended the session")
    try:
        answer = json_files.parse(message.data)
    except ValueError:
        raise Wrong(f"answers what is no JSON: {shown(message.data, 200)}") from None
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if isinstance(data, Mapping) and answer.get("type") == "error":
        if data.get("code") == INVALID:
            _check_blame(action, data.get("errors"))
        said = f"answers {shown(data.get('code'))}: {shown(data.get('message'), 300)}"
        raise NotNow(said) if data.get("code") == FULL else Wrong(said)
    if not isinstance(data, Mapping) or answer.get("type") != "observation" or "observation" not in data:
        raise Wrong(f"answers what is no observation: {shown(answer, 200)}")
    return data


def _check_blame(action: Mapping[str, Any], errors: Any) -> None:
    """Raises: InvalidAction: errors in OpenEnv's form (`loc`, `msg`) name a field of ``action``."""
    for error in errors if isinstance(errors, list) else ():
        place, said = (error.get("loc"), error.get("msg")) if isinstance(error, Mapping) else (None, None)
        for part in place if isinstance(place, list) else ():
            if isinstance(part, str) and part in action:
                raise InvalidAction(f"{part}: {said[:200] if isinstance(said, str) else 'this cannot be'}")


_open: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_all() -> None:
    wait([submitted(connection._close()) for connection in _open if connection._http is not None], CLOSING_S)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_open.clear)  # They are the parent's.
