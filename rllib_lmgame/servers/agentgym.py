"""Games by the requests of AgentGym's servers (https://github.com/WooooDyy/AgentGym), as its TextCraft has them.

``/NAME`` is the base address of a game, and ``/`` that of the only one:

- ``GET /`` says what it is; ``POST /create`` -> ``{"id"}``; ``POST /reset {"id", "data_idx"}`` begins the level of that
  number and ``POST /step {"id", "action"}`` replies -> ``{"observation", "reward", "score", "done"}``; ``POST /close
  {"id"}`` -> ``true``.
- ``GET /observation?id=``, ``/available_actions?id=`` and ``/detail?id=`` (the rules, the seats, what the game says at
  the end).

``score`` is the sum of rewards. What is wrong is answered as ``{"error"}`` with status 200, as AgentGym's servers do.
In games for several, seats are those of the server, and an answer names the one that is to reply: ``agent``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.http_server import guard
from rllib_lmgame.servers.served_episode import GameLostError, View
from rllib_lmgame.servers.sessions import (
    MOST_BYTES,
    MOST_SEED,
    Client,
    FullError,
    HeldSessions,
    ServedGame,
    SessionPool,
    always,
)


def agentgym_app(pool: SessionPool, token: str | None) -> web.Application:
    """The server's application."""
    app = web.Application(client_max_size=MOST_BYTES, middlewares=[guard(token)])
    names = ", ".join(pool.games)
    if len(pool.games) > 1:
        app.router.add_get("/", always(f"These are the environments {names}."))
    for game in pool.games.values():
        served = _Served(pool, game)
        for base in pool.bases(game):
            served.route(app, base)
        app.on_shutdown.append(served.close)
    return app


class RequestError(ValueError):
    """A request that cannot be read, or names no session."""


@dataclass
class _Session:
    """A session, and what it was told last."""

    client: Client
    view: View | None = None
    score: float = 0.0


class _Served:
    """One game's addresses."""

    def __init__(self, pool: SessionPool, game: ServedGame) -> None:
        self._game = game
        self._held: HeldSessions[_Session] = HeldSessions(pool)
        self._numbers = itertools.count()

    def route(self, app: web.Application, base: str) -> None:
        about = always(f"This is environment {self._game.name}.")
        for path in {f"{base}/", base or "/"}:
            app.router.add_get(path, about)
        for name in ("create", "reset", "step", "close"):
            app.router.add_post(f"{base}/{name}", self._told(getattr(self, f"_{name}")))
        for name in ("observation", "available_actions", "detail"):
            app.router.add_get(f"{base}/{name}", self._told(getattr(self, f"_{name}")))

    async def close(self, app: web.Application) -> None:
        """End what is in play."""
        await self._held.close()

    def _told(self, method: Any) -> Any:
        async def handler(request: web.Request) -> web.Response:
            try:
                asked = dict(request.query) if request.method == "GET" else _object(await request.read())
                return web.json_response(await method(asked))
            except (RequestError, ConfigError, FullError, GameLostError, MissingDependencyError) as error:
                return web.json_response({"error": str(error)})

        return handler

    async def _create(self, asked: Mapping[str, Any]) -> Any:
        for key in ("commands", "goal"):
            if asked.get(key) is not None:
                raise RequestError(f"{key} are those of the level; leave them out")
        number = next(self._numbers)
        self._held.enter(number, _Session)
        return {"id": number, "observation": f"This is environment {self._game.name}.", "reward": 0, "done": False}

    async def _reset(self, asked: Mapping[str, Any]) -> Any:
        session = self._session(asked)
        level = asked.get("data_idx", 0)
        if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= MOST_SEED:
            raise RequestError(f"data_idx must be a whole number from 0 to {MOST_SEED}")
        session.view, session.score = None, 0.0
        return self._answer(session, await session.client.reset(self._game, None, level, None))

    async def _step(self, asked: Mapping[str, Any]) -> Any:
        session, action = self._session(asked), asked.get("action")
        if not isinstance(action, str):
            raise RequestError("action must be text")
        return self._answer(session, await session.client.reply(action))

    async def _close(self, asked: Mapping[str, Any]) -> Any:
        self._session(asked)
        await self._held.leave(int(asked["id"]))
        return True

    async def _observation(self, asked: Mapping[str, Any]) -> Any:
        return self._now(asked).observation.text

    async def _available_actions(self, asked: Mapping[str, Any]) -> Any:
        return {"available_actions": list(self._now(asked).observation.legal_actions)}

    async def _detail(self, asked: Mapping[str, Any]) -> Any:
        session = self._session(asked)
        return {
            "env_id": self._game.name,
            "instructions": self._game.instructions,
            "agents": list(self._game.agents),
            "score": session.score,
            "info": {} if session.view is None else {agent: dict(info) for agent, info in session.view.infos.items()},
        }

    def _answer(self, session: _Session, view: View) -> dict[str, Any]:
        session.view = view
        session.score += view.reward
        named = {"agent": view.agent} if len(self._game.agents) > 1 else {}
        text = view.observation.text
        return {"observation": text, "reward": view.reward, "score": session.score, "done": view.over, **named}

    def _now(self, asked: Mapping[str, Any]) -> View:
        view = self._session(asked).view
        if view is None:
            raise RequestError("no level is begun; reset begins one")
        return view

    def _session(self, asked: Mapping[str, Any]) -> _Session:
        """The session that a request names. Raises: RequestError: there is none."""
        name = asked.get("id")
        number = int(name) if isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 16 else name
        session = None if isinstance(number, bool) or not isinstance(number, int) else self._held.of(number)
        if session is None:
            raise RequestError("there is no such session: create opens one, and it is closed when it is left too long")
        return session


def _object(text: bytes) -> dict[str, Any]:
    try:
        asked = json_files.parse(text or b"{}")
    except ValueError as error:
        raise RequestError(f"the request is no JSON: {error}") from None
    if not isinstance(asked, dict):
        raise RequestError("the request is no JSON object")
    return asked
