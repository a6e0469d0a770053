"""Every HTTP server keeps out web pages, and outlives requests that are unfinished, huge or nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rllib_lmgame.base import http_server
from rllib_lmgame.endpoints.chat_server import ChatEndpoint
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers.openenv import openenv_app
from rllib_lmgame.servers.play import games_app
from rllib_lmgame.servers.retriever import RetrieverServer
from rllib_lmgame.servers.sessions import SessionPool, open_games
from rllib_lmgame.servers.viewer import Viewer
from rllib_lmgame.viewer.library import Library


def _pool() -> SessionPool:
    return SessionPool(asyncio.run(open_games({"lake": GameConfig(env="lmgame/FrozenLake-v0", env_config={})})))


async def _nothing(*request: Any) -> Any:
    raise AssertionError("a refused request is not answered")


def _chat() -> web.Application:
    endpoint = ChatEndpoint("model")
    endpoint.admit("token", _nothing)
    return endpoint.app()


SERVERS: dict[str, tuple[Callable[[], web.Application], str]] = {
    "openenv": (lambda: openenv_app(_pool(), None), "/health"),
    "chat": (_chat, "/v1/chat/completions"),
    "play": (lambda: games_app(_nothing), "/"),
    "viewer": (lambda: Viewer(Library([]), "run", 0, lambda: ()).app(), "/"),
    "retriever": (lambda: RetrieverServer(SimpleNamespace(corpus=()), 3).app("127.0.0.1"), "/retrieve"),  # type: ignore[arg-type]
}


async def _status(app: web.Application, head: str, end: bytes) -> int:
    """What a request is answered with that says so much; more never comes."""
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + end)
        try:
            async with asyncio.timeout(60):
                return int((await reader.readline()).split()[1])
        finally:
            writer.close()


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    ("said", "length", "status"),
    [
        ("Origin: http://evil.example\nHost: 127.0.0.1", 2, 403),
        ("Host: evil.example", 2, 403),
        ("Host: localhost", 9, 408),
    ],
)
def test_pages_and_unfinished_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str, length: int, status: int
) -> None:
    monkeypatch.setattr(http_server, "BODY_S", 0.05)
    made, path = SERVERS[name]
    head = f"POST {path} HTTP/1.1\n{said}\nAuthorization: Bearer token\nContent-Length: {length}"
    assert asyncio.run(_status(made(), head, b"{}")) == status


BAD = [
    b"{",
    b"[1]",
    b'"\xff"',
    b"[" * 100_000,
    b'{"a":' * 40_000,
    b'{"id": 1' + b"0" * 5_000 + b"}",
    b'{"seed": 1' + b"0" * 4_000 + b', "data_idx": 1e999, "messages": 7, "queries": {}}',
]


@pytest.mark.parametrize("name", SERVERS)
def test_nonsense_and_huge_bodies_are_refused_and_the_server_goes_on(name: str) -> None:
    made, path = SERVERS[name]
    app = made()

    async def ask() -> None:
        headers = {"Authorization": "Bearer token", "Host": "localhost"}
        async with TestServer(app) as server, aiohttp.ClientSession(headers=headers) as http:
            for body in BAD:
                async with http.post(server.make_url(path), data=body) as response:
                    assert response.status in (400, 405), (body[:20], response.status)
                    assert len(await response.read()) < 4_000
            async with http.post(server.make_url(path), data=b" " * (17 << 20)) as response:
                assert response.status == 413

    asyncio.run(ask())


def test_a_retriever_for_other_machines_goes_by_any_name() -> None:
    app = RetrieverServer(SimpleNamespace(corpus=()), 3).app("0.0.0.0")  # type: ignore[arg-type]
    assert asyncio.run(_status(app, "GET / HTTP/1.1\nHost: node-7.cluster", b"")) == 200
