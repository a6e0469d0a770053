"""A game server in the test's own event loop, and games that break."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from rllib_lmgame.envs.contract.base import TextGame
from rllib_lmgame.envs.registry import make_game
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan
from rllib_lmgame.rollouts.play import PlayedPlans, Sessions, play_many
from rllib_lmgame.rollouts.players import Scripted, take_seats
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers.sessions import SessionPool, open_games

TOKEN = "a-token-of-tests"

OPENENV = os.environ.get("OPENENV_PYTHON")
"""Python of an environment in which OpenEnv is installed with all that it asks for."""
_UNUSED = ("fastmcp", "fastmcp.client", "fastmcp.client.client", "gradio")
OPENENV_BEGINS = (
    ""
    if OPENENV
    else f"import sys, unittest.mock\nsys.modules |= dict.fromkeys({_UNUSED}, unittest.mock.MagicMock())\n"
)
"""Of programs of OpenEnv: here it has not what it imports for tools and web pages, which games are not asked by."""


@dataclass
class Served:
    """A server and a client that knows its token."""

    pool: SessionPool
    url: str
    http: aiohttp.ClientSession

    async def get(self, path: str, **options: Any) -> Any:
        async with self.http.get(self.url + path, **options) as response:
            return response.status, await response.json() if "json" in response.content_type else await response.text()

    async def post(self, path: str, body: Any = None, **options: Any) -> Any:
        options = options if body is None else {"json": body, **options}
        async with self.http.post(self.url + path, **options) as response:
            return response.status, await response.json() if "json" in response.content_type else await response.text()


@asynccontextmanager
async def serving(
    make_app: Callable[[SessionPool, str | None], web.Application],
    *games: str,
    token: str | None = TOKEN,
    seating: Any = None,
    options: dict[str, Any] | None = None,
    **limits: Any,
) -> AsyncIterator[Served]:
    """The games served; all places are free again at the end."""
    named = {game: GameConfig(env=game, env_config=options or {}) for game in games}
    pool = SessionPool(await open_games(named, seating), **limits)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        TestServer(make_app(pool, token)) as server,
        aiohttp.ClientSession(headers=headers, connector=connector) as http,
    ):
        yield Served(pool, str(server.make_url("/")).rstrip("/"), http)
    assert pool.active == 0


@contextmanager
def running(
    make_app: Callable[[SessionPool, str | None], web.Application], *games: str, **how: Any
) -> Iterator[Served]:
    """The same in a thread, for clients that block; ``how`` as :func:`serving` has it."""
    found: Future[Served] = Future()
    end = threading.Event()

    async def serve() -> None:
        async with serving(make_app, *games, **how) as served:
            found.set_result(served)
            while not end.is_set():
                await asyncio.sleep(0.01)

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(asyncio.run, serve())
        try:
            while not found.done():
                if served.done():
                    served.result()
                time.sleep(0.01)
            yield found.result()
        finally:
            end.set()
            served.result()


def expert(game: str, seed: int, **options: Any) -> list[str]:
    """Replies that win a game for one."""
    env = make_game(game, options)
    env.reset(seed=seed)
    replies: list[str] = []
    while True:
        replies.append(str(env.expert_action()))
        if env.step(replies[-1])[2]:
            return replies


def played_at_random(game: GameConfig, count: int, at_once: int) -> PlayedPlans:
    """So many episodes of a game for one; their sessions are closed."""
    assignments = {"player": AgentAssignment("r", "random")}
    plans = [EpisodePlan(f"e{n}", 0, n, f"g{n}", n, assignments=assignments) for n in range(count)]
    player = Scripted("random")
    seats = partial(take_seats, player_of=lambda _: player)
    with closing(Sessions()) as sessions:
        return asyncio.run(play_many(plans, [game], seats, sessions, TextRolloutOptions(), at_once))


class Hangs(TextGame):
    """Says hello; never comes back from `hang`, and raises at `raise`."""

    has_levels = False

    def levels(self, rng: Any) -> Any:
        while True:
            yield "the only one"

    def level_key(self, level: Any) -> str:
        return str(level)

    def start(self, level: Any) -> None:
        self.won = False

    def board(self) -> str:
        return "hello"

    def legal_actions(self) -> tuple[str, ...]:
        return ("win",)

    def read_move(self, text: str) -> str:
        return text

    def play_move(self, move: str) -> float:
        if move == "hang":
            time.sleep(60)
        if move == "raise":
            raise RuntimeError("broken, see /srv/games/own data/x.txt or ~/notes/y")
        self.won = move == "win"
        return float(self.won)

    @property
    def success(self) -> bool:
        return self.won
