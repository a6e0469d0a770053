"""Every HTTP server keeps out web pages and requests that do not come to their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rllib_lmgame.base import http_server
from rllib_lmgame.endpoints.chat_server import ChatEndpoint
from rllib_lmgame.envs.support.retrieval.server import RetrieverServer
from rllib_lmgame.game_server.agentgym import agentgym_app
from rllib_lmgame.game_server.hall import Hall, open_games
from rllib_lmgame.game_server.openenv import openenv_app
from rllib_lmgame.rollouts.records import GameConfig


def _hall() -> Hall:
    games = {"lake": GameConfig(env="lmgame/FrozenLake-v0", env_config={})}
    return Hall(asyncio.run(open_games(games, None, tasks=20)))


async def _nothing(request: Any) -> Any:
    raise AssertionError("a refused request is not answered")


def _chat() -> web.Application:
    endpoint = ChatEndpoint("model")
    endpoint.admit(None, _nothing)
    return endpoint.app()


SERVERS: dict[str, tuple[Callable[[], web.Application], str]] = {
    "openenv": (lambda: openenv_app(_hall(), None), "/reset"),
    "agentgym": (lambda: agentgym_app(_hall(), None), "/create"),
    "chat": (_chat, "/v1/chat/completions"),
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
    head = f"POST {path} HTTP/1.1\n{said}\nContent-Type: application/json\nContent-Length: {length}"
    assert asyncio.run(_status(made(), head, json.dumps({}).encode())) == status


def test_a_retriever_for_other_machines_goes_by_any_name() -> None:
    app = RetrieverServer(SimpleNamespace(corpus=()), 3).app("0.0.0.0")  # type: ignore[arg-type]
    head = "GET / HTTP/1.1\nHost: node-7.cluster"
    assert asyncio.run(_status(app, head, b"")) == 200
