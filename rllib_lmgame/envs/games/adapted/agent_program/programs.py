"""Agent programs in processes of their own, and the endpoint of this process at which they ask for completions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.text import shown
from rllib_lmgame.endpoints.chat_server import ChatEndpoint
from rllib_lmgame.endpoints.completions import ChatReply, ChatRequest, RequestError
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.support.loop_thread import submitted, waited_for

MODEL = "policy"
"""What the model is called; a program may call it otherwise."""
START_LIMIT_S = 120.0
"""Longest time that a program may take to be imported."""
END_LIMIT_S = 10.0
"""Longest wait for all processes of a program that was ended."""
HOST = Path(__file__).with_name("host.py")


class ProgramProblem(ValueError):
    """Why a program cannot be used."""


class Host:
    """The process that has imported a program (:mod:`.host`). It ends when the last game that uses it is closed.

    Raises: ProgramProblem: the program cannot be used.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._orders, theirs = socket.socketpair()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(HOST), path, str(theirs.fileno())],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        weakref.finalize(self, _end, self._orders, self._process)
        said = self._first_line()
        if said["problem"]:
            raise ProgramProblem(said["problem"])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, task: Mapping[str, Any]) -> socket.socket:
        """Begin an episode; the socket brings what comes of it. Raises: OSError: the process has died."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._orders, [b"1"], [theirs.fileno()])
            ours.sendall(json.dumps(task).encode() + b"\n")
        except BaseException:
            ours.close()
            raise
        return ours

    def _first_line(self) -> dict[str, Any]:
        self._orders.settimeout(START_LIMIT_S)
        line = b""
        try:
            while not line.endswith(b"\n"):
                part = self._orders.recv(65_536)
                if not part:
                    raise ProgramProblem(f"the process that imports {self.path} ended with {self._process.wait()}")
                line += part
        except TimeoutError:
            raise ProgramProblem(f"importing {self.path} took longer than {START_LIMIT_S:g} s") from None
        self._orders.settimeout(None)
        return dict(json.loads(line))


def _end(orders: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Those that watch over episodes are processes of their own, and go on until these are over."""
    orders.close()
    process.kill()
    process.wait()


_lock = threading.Lock()
_hosts: weakref.WeakValueDictionary[tuple[int, str], Host] = weakref.WeakValueDictionary()
"""Of this process (by its id: a forked child must not use its parent's)."""
_endpoints: dict[int, tuple[ChatEndpoint, str]] = {}


def host_of(path: str) -> Host:
    """The process that has imported a program. Raises: ProgramProblem: the program cannot be used."""
    key = (os.getpid(), path)
    with _lock:
        host = _hosts.get(key)
        if host is None or not host.alive:
            host = _hosts[key] = Host(path)
        return host


def endpoint() -> tuple[ChatEndpoint, str]:
    """The endpoint of this process, and its address."""
    with _lock:
        if os.getpid() not in _endpoints:
            chats = ChatEndpoint(MODEL)
            port = waited_for(_serve(chats.app()))
            _endpoints[os.getpid()] = (chats, f"http://127.0.0.1:{port}/v1")
        return _endpoints[os.getpid()]


async def _serve(app: web.Application) -> int:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


@dataclass(frozen=True)
class _Asked:
    request: ChatRequest
    reply: asyncio.Future[ChatReply]


class Run:
    """One episode of a program.

    Args:
        host: Where it runs.
        task: What it is given beside the endpoint: seed, split, options.

    Raises: OSError: the host has died.
    """

    def __init__(self, host: Host, task: Mapping[str, Any]) -> None:
        self._path = host.path
        self._events: queue.SimpleQueue[_Asked | Mapping[str, Any]] = queue.SimpleQueue()
        self._waiting: set[asyncio.Future[ChatReply]] = set()
        self._asked: _Asked | None = None
        self._over = False
        self._endpoint, address = endpoint()
        self._token = secrets.token_urlsafe(24)
        self._socket = host.begin({"base_url": address, "api_key": self._token, "model": MODEL, **task})
        self._endpoint.admit(self._token, self._ask)
        self._watching: Future[None] = submitted(self._watch())

    def next_request(self) -> ChatRequest | None:
        """What it asks for next, whenever that is; ``None`` when it has ended (see :attr:`result`).

        Raises: GameError: it failed, or was ended.
        """
        while True:
            event = self._events.get()
            if not isinstance(event, _Asked):
                self._events.put(event)  # Whoever asks again is told the same.
                if "result" not in event:
                    raise GameError(f"{self._path}: {event.get('error', 'it was ended')}")
                self.result = event["result"]
                return None
            if not event.reply.done():  # Else nobody waits for it any more.
                self._asked = event
                return event.request

    def answer(self, reply: ChatReply | RequestError) -> bool:
        """Reply to what was asked last, once; returns whether its client still waited."""
        asked, self._asked = self._asked, None
        return asked is not None and waited_for(_settle(asked.reply, reply))

    def end(self) -> None:
        """End it, if it has not ended, and wait until nothing of it is left."""
        with contextlib.suppress(OSError):  # It is closed.
            self._socket.shutdown(socket.SHUT_WR)
        try:
            self._watching.result(END_LIMIT_S)
        except TimeoutError:
            self._watching.cancel()

    async def _ask(self, request: ChatRequest) -> ChatReply:
        if self._over:
            raise OVER
        reply: asyncio.Future[ChatReply] = asyncio.get_running_loop().create_future()
        self._waiting.add(reply)
        self._events.put(_Asked(request, reply))
        try:
            return await reply
        finally:
            self._waiting.discard(reply)

    async def _watch(self) -> None:
        said = b""
        try:
            reader, writer = await asyncio.open_connection(sock=self._socket)
            with contextlib.suppress(OSError):
                said = await reader.read(-1)
            writer.close()
        finally:
            self._over = True
            self._endpoint.dismiss(self._token)
            for reply in self._waiting:
                await _settle(reply, OVER)
            self._events.put(_what_was_said(said))


OVER = RequestError("the episode is over", code="episode_over", status=410)


async def _settle(reply: asyncio.Future[ChatReply], found: ChatReply | RequestError) -> bool:
    """Hand over what was found; ``False``: the client has gone."""
    if reply.done():
        return False
    if isinstance(found, RequestError):
        reply.set_exception(found)
    else:
        reply.set_result(found)
    return True


def _what_was_said(data: bytes) -> Mapping[str, Any]:
    try:
        said = parse(data) if data else {}
    except ValueError:
        return {"error": f"it returned {shown(data.decode(errors='replace'))}"}
    return said if isinstance(said, dict) else {}
