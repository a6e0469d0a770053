"""Games as environments of OpenEnv 0.10 (https://github.com/huggingface/OpenEnv), over WebSockets.

``/NAME`` is the base address of a game, and ``/`` that of the only one. Messages are those of
``openenv/core/env_server``; actions, observations and states are those of its ``textarena_env``, so that its client
plays here. What OpenEnv has no place for:

- ``reset`` takes ``seats`` (``["remote", "minimax"]``, or by names), and ``split`` with ``index`` or ``seed``.
- ``observation.info`` has ``observation`` (the text that is new), ``agent``, ``legal_actions``, ``turns_left``,
  ``invalid_action``; ``rewards`` by seat; at the end ``success``, ``truncated``, ``stop_reason`` and what else the game
  says.

As in ``textarena_env`` the one message of an observation is all that the seat has been shown so far.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.http_server import guard, open_to_all
from rllib_lmgame.envs.contract.base import MAX_TEXT
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.servers.openenv_forms import SCHEMA, VERSION, Action, Reset, State, openapi
from rllib_lmgame.servers.served_episode import GameLostError, ServedEpisode, View
from rllib_lmgame.servers.sessions import MOST_BYTES, FullError, ServedGame, SessionPool

CUT_OFF_BYTES = 1 << 22
"""A connection that sends more in one message is closed (1009)."""
PING_S = 60.0
"""Between two pings; a client that answers none for half as long is gone."""
MOST_ERRORS = 10
"""Errors of one message that are reported."""
CLOSING_S = 2.0
"""Seconds that clients have to take leave when the server stops."""

INVALID_JSON, UNKNOWN_TYPE, VALIDATION_ERROR = "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"
EXECUTION_ERROR, CAPACITY_REACHED, SESSION_ERROR = "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"
NO_TOOLS = {"jsonrpc": "2.0", "error": {"code": -32601, "message": "games have no tools"}, "id": None}
"""The answer to JSON-RPC of the Model Context Protocol."""

M = TypeVar("M", bound=BaseModel)


class WireError(Exception):
    """An answer that says what was wrong: ``code`` as OpenEnv has it, and more fields."""

    def __init__(self, code: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.code, self.fields = code, fields

    def message(self) -> dict[str, Any]:
        return {"type": "error", "data": {"message": str(self), "code": self.code, **self.fields}}


@dataclass
class Episode:
    """One client's episode: what it was begun with, and what each of its seats has been shown."""

    pool: SessionPool
    game: ServedGame
    played: ServedEpisode | None = None
    episode_id: str | None = None
    shown: dict[str, str] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    max_turns: int | None = None
    last_reward: float = 0.0
    last_info: dict[str, Any] = field(default_factory=dict)

    async def reset(self, asked: Reset) -> dict[str, Any]:
        """Leave the game in play, and begin another one. Raises: WireError."""
        with _said_on_the_wire():
            config = self.game.at(asked.split)
            await self.leave()
            seats = self.game.seating if asked.seats is None else asked.seats
            self.played = self.pool.begin(config, seats, asked.seed)
            view = await self.played.next_view()
        self.episode_id = asked.episode_id or str(uuid4())
        self.shown, self.steps, self.last_reward, self.last_info = {}, 0, 0.0, {}
        self.said = {"episode_id": self.episode_id, "env_id": self.game.name}
        self.said |= {key: value for key, value in (("split", asked.split), ("seed", asked.seed)) if value is not None}
        self.max_turns = view.observation.turns_left
        return self._answer(view)

    async def step(self, message: str) -> dict[str, Any]:
        """Reply. Raises: WireError."""
        with _said_on_the_wire():
            if self.played is None:
                raise GameLostError("no game is begun; reset begins one")
            view = await self.played.reply(message)
        self.steps += 1
        if view.replied is not None:
            self.shown[view.replied] = f"{self.shown.get(view.replied, '')}\n\n[{view.replied}] {message[:MAX_TEXT]}"
        return self._answer(view)

    async def leave(self) -> None:
        """End the game wherever it is."""
        played, self.played = self.played, None
        if played is not None:
            await played.leave()

    def state(self) -> dict[str, Any]:
        """What OpenEnv calls the state: nothing of it is the game's own, which would be a secret."""
        return State(
            env_id=self.game.name,
            num_players=len(self.game.agents),
            episode_id=self.episode_id,
            step_count=self.steps,
            max_turns=self.max_turns,
            turn=self.steps,
            last_reward=self.last_reward,
            last_info=self.last_info,
        ).model_dump()

    def _answer(self, view: View) -> dict[str, Any]:
        assert self.played is not None
        prompt, number = self.played.instructions, {agent: n for n, agent in enumerate(self.played.agents)}
        text = view.observation.text
        before = self.shown.get(view.agent)
        self.shown[view.agent] = f"{prompt}\n\n{text}".lstrip("\n") if before is None else f"{before}\n\n{text}"
        info = {**view.info, "observation": text}
        if len(view.rewards) > 1:
            info["rewards"] = {str(number[agent]): reward for agent, reward in view.rewards.items()}
        if len(view.infos) > 1:
            info["ends"] = {str(number[agent]): dict(said) for agent, said in view.infos.items()}
        self.last_reward, self.last_info = view.reward, info
        metadata = {**self.said, "turn": self.steps}
        return {
            "observation": {
                "prompt": prompt,
                "messages": [{"sender_id": -1, "content": self.shown[view.agent], "category": "MESSAGE"}],
                "current_player_id": number[view.agent],
                "legal_players": [] if view.over else [number[view.agent]],
                "info": info,
                "metadata": metadata,
            },
            "reward": view.reward,
            "done": view.over,
            "metadata": metadata,
        }


def _read(form: type[M], data: Any) -> M:
    """A message. Raises: WireError: it has another form."""
    try:
        return form.model_validate(data)
    except ValidationError as error:
        told = error.errors(include_url=False, include_context=False, include_input=False)
        raise _invalid(*({**each, "loc": ["data", *each["loc"]]} for each in told[:MOST_ERRORS])) from None


def _read_reset(data: Any) -> Reset:
    """Arguments of a reset; ``index`` is an alias of the seed. Raises: WireError."""
    asked = _read(Reset, data)
    if asked.index is not None and asked.seed is not None:
        raise _invalid({"type": "value_error", "loc": ["data", "index"], "msg": "stands beside seed; give one of them"})
    return asked if asked.index is None else asked.model_copy(update={"seed": asked.index})


def _invalid(*errors: Mapping[str, Any]) -> WireError:
    told = [{**error, "loc": [str(part)[:100] for part in error["loc"]]} for error in errors]
    said = "; ".join(f"{'.'.join(error['loc'])}: {error['msg']}" for error in told)
    return WireError(VALIDATION_ERROR, f"Invalid message: {said}", errors=told)


@contextmanager
def _said_on_the_wire() -> Iterator[None]:
    """Raises: WireError: what is wrong with a seat or split, or that the game is lost."""
    try:
        yield
    except ConfigError as error:
        place = ["data", error.path] if error.path else ["data"]
        raise _invalid({"type": "value_error", "loc": place, "msg": error.message}) from None
    except (GameLostError, MissingDependencyError) as error:
        raise WireError(EXECUTION_ERROR, str(error)) from None


def openenv_app(pool: SessionPool, token: str | None) -> web.Application:
    """The server's application."""
    app = web.Application(client_max_size=MOST_BYTES, middlewares=[guard(token)])
    for game in pool.games.values():
        served = _Served(pool, game)
        for base in ("", f"/{game.name}") if len(pool.games) == 1 else (f"/{game.name}",):
            served.route(app, base)
        app.on_shutdown.append(served.close)
    return app


class _Served:
    """One game's addresses."""

    def __init__(self, pool: SessionPool, game: ServedGame) -> None:
        self._pool, self._game = pool, game
        self._sockets: weakref.WeakSet[web.WebSocketResponse] = weakref.WeakSet()

    def route(self, app: web.Application, base: str) -> None:
        env = self._game.config.env
        metadata = {"name": self._game.name, "description": game_spec(env).summary or env, "version": VERSION}
        told = {"health": {"status": "healthy"}, "metadata": metadata, "schema": SCHEMA}
        told["openapi.json"] = openapi(self._game.name)
        for name, content in told.items():
            app.router.add_get(f"{base}/{name}", _always(content))
        app.router.add_post(f"{base}/mcp", _always(NO_TOOLS))
        app.router.add_get(f"{base}/ws", self._socket)

    async def close(self, app: web.Application) -> None:
        """End what is in play; a client that does not read is cut off."""
        leaves = [asyncio.create_task(socket.close(code=WSCloseCode.GOING_AWAY)) for socket in self._sockets]
        if leaves:
            _, late = await asyncio.wait(leaves, timeout=CLOSING_S)
            for leave in late:
                leave.cancel()

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=PING_S, max_msg_size=CUT_OFF_BYTES)
        await socket.prepare(request)
        self._sockets.add(socket)
        episode = Episode(self._pool, self._game)
        try:
            with self._pool.place():
                try:
                    await self._talk(socket, episode)
                finally:
                    await episode.leave()
        except FullError as error:
            await socket.send_json(WireError(CAPACITY_REACHED, str(error)).message())
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
        except ConnectionError:  # The client is gone.
            if request.transport is not None:
                request.transport.abort()
        await socket.close()
        return socket

    async def _talk(self, socket: web.WebSocketResponse, episode: Episode) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pool.idle_s):
                    message = await socket.receive()
            except TimeoutError:
                error = WireError(SESSION_ERROR, f"nothing was heard for {self._pool.idle_s:g} s")
                await self._tell(socket, error.message())
                return
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            try:
                answer = await _answered(episode, message.data)
            except WireError as error:
                answer = error.message()
            if answer is None:
                return
            await self._tell(socket, answer)

    async def _tell(self, socket: web.WebSocketResponse, answer: dict[str, Any]) -> None:
        """Send an answer. Raises: ConnectionError: the client is gone, or reads nothing."""
        try:
            async with asyncio.timeout(self._pool.idle_s):
                await socket.send_json(answer)
        except TimeoutError:
            raise ConnectionResetError("the client does not read") from None


async def _answered(episode: Episode, text: str | bytes) -> dict[str, Any] | None:
    """The answer to one message of a WebSocket; ``None`` to ``close``. Raises: WireError."""
    if len(text) > MOST_BYTES:
        raise _invalid({"type": "too_long", "loc": [], "msg": f"{len(text):,} characters; {MOST_BYTES:,} are read"})
    try:
        message = json_files.parse(text)
    except ValueError as error:
        raise WireError(INVALID_JSON, f"Invalid JSON: {error}") from None
    if not isinstance(message, dict):
        raise _invalid({"type": "dict_type", "loc": [], "msg": "must be an object"})
    kind, data = message.get("type"), message.get("data")
    if kind == "reset":
        asked = _read_reset({} if data is None else data)
        return {"type": "observation", "data": await episode.reset(asked)}
    if kind == "step":
        return {"type": "observation", "data": await episode.step(_read(Action, data).message)}
    if kind == "state":
        return {"type": "state", "data": episode.state()}
    if kind == "mcp":
        return {"type": "mcp", "data": NO_TOOLS}
    if kind == "close":
        return None
    raise WireError(UNKNOWN_TYPE, f"Unknown message type: {json.dumps(kind)[:100]}")


def _always(content: Any) -> Handler:
    """A handler that gives everybody this JSON."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(content)

    return open_to_all(answer)
