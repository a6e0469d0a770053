"""Games by MRLM's gRPC service (https://github.com/open-tinker/MRLM, ``src/mrlm/protocols/mrlm.proto``).

``Reset`` names a game and begins a session. The service has no call that ends one: it ends with the game, or when
nothing is heard of it for too long. It ends at once when its client is cut off while it waits for an answer.
``StreamStep`` is not implemented. ``config`` may hold ``seed``, ``split`` and ``seats`` (names joined by commas). The
messages of an observation are the whole conversation of the seat that is to reply. Values of ``info`` are JSON.

A token is sent as metadata, ``authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import time_ns
from typing import Any
from uuid import uuid4

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.http_server import check_free, in_address
from rllib_lmgame.base.text import in_words
from rllib_lmgame.envs.contract.base import MAX_TEXT
from rllib_lmgame.envs.games.adapted.mrlm.protocol import METHODS, SERVICE, messages, writable
from rllib_lmgame.servers.served_episode import GameLostError, View
from rllib_lmgame.servers.sessions import (
    MOST_BYTES,
    MOST_SEED,
    Client,
    FullError,
    HeldSessions,
    ServedGame,
    SessionPool,
)


@dataclass
class _Session:
    """A session: the game, and the conversation of each of the client's seats as (role, text)."""

    game: ServedGame
    client: Client
    said: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


async def serve_mrlm(pool: SessionPool, token: str | None, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until cancelled; ``ready`` is called with the port when requests are taken.

    Raises: ConfigError: the address is taken, or not this machine's.
    """
    import grpc

    # Without SO_REUSEPORT two servers at one port would share its clients.
    options = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.so_reuseport", 0)]
    check_free(host, port)  # What gRPC says of it goes to the terminal, and is for its authors.
    server = grpc.aio.server(options=options)
    service = _Service(pool, token)
    server.add_generic_rpc_handlers((service.handlers(),))
    try:
        taken = server.add_insecure_port(f"{in_address(host)}:{port}")
    except RuntimeError as error:
        raise ConfigError("--port", f"cannot listen at {host}:{port}: {error}") from None
    await server.start()
    try:
        ready(taken)
        await asyncio.Event().wait()
    finally:
        await service.close()
        await server.stop(grace=None)


class _Service:
    def __init__(self, pool: SessionPool, token: str | None) -> None:
        self._pool, self._token = pool, token
        self._held: HeldSessions[_Session] = HeldSessions(pool)

    def handlers(self) -> Any:
        """The methods, for gRPC."""
        import grpc

        forms = messages()
        found = {
            name: grpc.unary_unary_rpc_method_handler(
                partial(_of_one, getattr(self, name)),
                request_deserializer=partial(_read, forms[asked]),
                response_serializer=forms[answered].SerializeToString,
            )
            for name, (asked, answered) in METHODS.items()
            if name != "StreamStep"
        }
        return grpc.method_handlers_generic_handler(SERVICE, found)

    async def close(self) -> None:
        """End what is in play."""
        await self._held.close()

    async def Reset(self, request: Any, context: Any) -> Any:
        """Begin a session."""
        await self._check(context)
        return await self._told(self._reset(request), context)

    async def Step(self, request: Any, context: Any) -> Any:
        """Reply."""
        await self._check(context)
        return await self._told(self._step(request), context)

    async def BatchStep(self, request: Any, context: Any) -> Any:
        """Reply in several sessions at once. What is wrong with one is its answer's ``status``, and ends it alone."""
        await self._check(context)
        try:
            answers = await asyncio.gather(*map(self._step, request.requests), return_exceptions=True)
        except asyncio.CancelledError:  # Also those that have replied: nobody hears it.
            for each in request.requests:
                await self._held.leave(each.session_id)
            raise
        return messages()["BatchStepResponse"](
            responses=[_lost(answer) if isinstance(answer, BaseException) else answer for answer in answers]
        )

    async def ListEnvironments(self, request: Any, context: Any) -> Any:
        """The games."""
        await self._check(context)
        made = messages()["EnvironmentInfo"]
        games = [
            made(
                environment_id=game.name,
                environment_type=game.config.env,
                mode="server",
                metadata={"description": game.summary, "agents": ", ".join(game.agents)},
            )
            for game in self._pool.games.values()
            if request.environment_type in ("", game.config.env)
        ]
        return messages()["ListEnvironmentsResponse"](environments=games)

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Answered without a token."""
        return messages()["HealthCheckResponse"](status="healthy", timestamp=time_ns() // 10**9)

    async def _check(self, context: Any) -> None:
        import grpc

        sent = dict(context.invocation_metadata() or ()).get("authorization", "")
        sent = sent if isinstance(sent, bytes) else sent.encode()
        if self._token is not None and not hmac.compare_digest(sent, f"Bearer {self._token}".encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is needed: authorization: Bearer TOKEN")

    async def _told(self, answer: Any, context: Any) -> Any:
        """An answer, or the status that says what was wrong."""
        try:
            return await answer
        except Exception as error:
            code, message = _status(error)
            if code is None:
                raise
        await context.abort(code, message)

    async def _reset(self, request: Any) -> Any:
        game = self._pool.games.get(request.environment_id)
        if game is None:
            raise KeyError(f"there is no environment {request.environment_id[:100]!r}: {', '.join(self._pool.games)}")
        config = dict(request.config)
        text = config.get("seed", "")
        if text and not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= MOST_SEED):
            raise ConfigError("config.seed", f"must be a whole number from 0 to {MOST_SEED}")
        seats = [name.strip() for name in config["seats"].split(",")] if config.get("seats") else None
        name = str(uuid4())
        session = self._held.enter(name, partial(_Session, game))
        try:
            view = await session.client.reset(game, seats, int(text) if text else None, config.get("split") or None)
        except BaseException:
            await self._held.leave(name)
            raise
        observation = self._observation(session, view)
        return messages()["ResetResponse"](observation=observation, session_id=name, status="success")

    async def _step(self, request: Any) -> Any:
        session = self._held.of(request.session_id)
        if session is None:
            raise KeyError(f"there is no session {request.session_id[:100]!r}: it is over, or was left too long")
        try:
            view = await session.client.reply(request.action.content)
        except (GameLostError, asyncio.CancelledError):  # No call begins another game in its session.
            await self._held.leave(request.session_id)
            raise
        if view.replied is not None:
            session.said.setdefault(view.replied, []).append(("assistant", request.action.content[:MAX_TEXT]))
        observation = self._observation(session, view)
        if view.over:
            await self._held.leave(request.session_id)
        reward = messages()["RewardProto"](value=view.reward, components=view.rewards)
        return messages()["StepResponse"](observation=observation, reward=reward, status="success")

    def _observation(self, session: _Session, view: View) -> Any:
        said = session.said.setdefault(view.agent, [])
        if not any(role == "environment" for role, _ in said) and session.game.instructions:
            said.insert(0, ("system", session.game.instructions))
        said.append(("environment", view.observation.text))
        made = messages()["MessageProto"]
        return messages()["ObservationProto"](
            messages=[made(role=role, content=writable(text)) for role, text in said],
            done=view.over,
            info={key: writable(json.dumps(value)) for key, value in view.info.items()},
        )


def _read(form: Any, data: bytes) -> Any:
    """The message, or ``None``: gRPC would print the stack of an error."""
    from google.protobuf.message import DecodeError

    try:
        return form.FromString(data)
    except DecodeError:
        return None


async def _of_one(method: Any, request: Any, context: Any) -> Any:
    """The answer of a method to one request."""
    from grpc import StatusCode

    if request is None:
        await context.abort(StatusCode.INVALID_ARGUMENT, "the request is no message of MRLM's service")
    return await method(request, context)


def _status(error: BaseException) -> tuple[Any, str]:
    """gRPC's code for what was wrong, ``None`` if no client is to blame, and what is said of it."""
    from grpc import StatusCode

    if isinstance(error, KeyError):
        return StatusCode.NOT_FOUND, str(error.args[0])
    codes = (
        (FullError, StatusCode.RESOURCE_EXHAUSTED),
        (ConfigError, StatusCode.INVALID_ARGUMENT),
        ((GameLostError, MissingDependencyError), StatusCode.FAILED_PRECONDITION),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), None), str(error)


def _lost(error: BaseException) -> Any:
    """The answer of a batch to a step that went wrong: over, so that a client that reads no status goes on."""
    code, message = _status(error)
    status = f"UNKNOWN: {in_words(error)}" if code is None else f"{code.name}: {message}"
    return messages()["StepResponse"](observation=messages()["ObservationProto"](done=True), status=writable(status))
