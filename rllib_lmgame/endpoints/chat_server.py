"""An OpenAI-compatible endpoint: ``/v1/chat/completions``, ``/v1/models``, and maybe ``/v1/completions`` for scores."""

from __future__ import annotations

import hmac
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from rllib_lmgame.base import json_files
from rllib_lmgame.base.http_server import read_whole, refuse_pages
from rllib_lmgame.endpoints.completions import (
    ChatReply,
    ChatRequest,
    RequestError,
    ScoredPrompt,
    ScoreRequest,
    read_request,
    read_score_request,
)

logger = logging.getLogger(__name__)

MOST_BYTES = 4 << 20
"""Of one request."""
CREATED = 0
"""When a completion was made: no clock is read for it."""

Answer = Callable[[ChatRequest], Awaitable[ChatReply]]
"""Replies to a request. Raises: RequestError: it cannot be replied to."""
Score = Callable[[ScoreRequest], Awaitable[ScoredPrompt]]
"""Scores tokens. Raises: RequestError: it cannot."""


class ChatEndpoint:
    """Who may ask, and who replies: each token has an answer of its own.

    Args:
        model: The name that the model goes by; requests may use any.
        score: Log-probabilities of tokens, for all who may ask; ``None``: there are none.
        unknown: What is said of a token that may not ask.
    """

    def __init__(self, model: str, score: Score | None = None, unknown: str = "no such token") -> None:
        self._model = model
        self._unknown = unknown
        self._score = score
        self._answers: dict[str | None, Answer] = {}

    def admit(self, token: str | None, answer: Answer) -> None:
        """From now on requests with ``token`` get ``answer``; ``None``: those of all programs of this machine."""
        self._answers[token] = answer

    def dismiss(self, token: str) -> None:
        """Nobody may ask with ``token`` any more."""
        self._answers.pop(token, None)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST_BYTES, middlewares=[_told])
        app.add_routes(
            [web.post("/v1/chat/completions", self._complete), web.get("/v1/models", self._models)],
        )
        if self._score is not None:
            app.add_routes([web.post("/v1/completions", self._scored)])
        return app

    async def _scored(self, request: web.Request) -> web.Response:
        self._answer_of(request)
        assert self._score is not None
        scored = await self._score(read_score_request(await _body(request)))
        return web.json_response(scored.body(f"cmpl-{uuid.uuid4().hex}", self._model, CREATED))

    async def _models(self, request: web.Request) -> web.Response:
        self._answer_of(request)
        listed = {"id": self._model, "object": "model", "created": CREATED, "owned_by": "rllib-lmgame"}
        return web.json_response({"object": "list", "data": [listed]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        answer = self._answer_of(request)
        asked = read_request(await _body(request))
        reply = await answer(asked)
        completion_id = f"chatcmpl-{uuid.uuid4().hex}"
        if not asked.stream:
            return web.json_response(reply.body(completion_id, self._model, CREATED))
        events = "".join(reply.events(completion_id, self._model, CREATED, asked.include_usage))
        return web.Response(text=events, content_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    def _answer_of(self, request: web.Request) -> Answer:
        """Raises: RequestError: no token, or an unknown one; a page of a web site."""
        refuse_pages(request, only_here=None in self._answers)
        if None in self._answers:
            return self._answers[None]
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        sent = value.strip().encode(errors="surrogateescape") if scheme.lower() == "bearer" else b""
        known = [(token, answer) for token, answer in [*self._answers.items()] if token is not None]
        found = [answer for token, answer in known if hmac.compare_digest(sent, token.encode())]
        if not found:
            raise RequestError(
                self._unknown if sent else "send `Authorization: Bearer TOKEN` (the client's api_key)",
                code="invalid_api_key",
                status=401,
            )
        return found[0]


async def _body(request: web.Request) -> Mapping[str, object]:
    """Raises: RequestError: no JSON, or too much of it; HTTPRequestTimeout: it does not come to its end."""
    try:
        body = await read_whole(request)
    except web.HTTPRequestEntityTooLarge:
        raise RequestError(f"the request has more than {MOST_BYTES:,} bytes", status=413) from None
    try:
        return json_files.parse(body)  # type: ignore[no-any-return]
    except ValueError:
        raise RequestError("the request is no JSON") from None


@web.middleware
async def _told(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]):  # type: ignore[no-untyped-def]
    """Errors in OpenAI's form."""
    try:
        return await handler(request)
    except RequestError as error:
        refused = error
    except web.HTTPException as error:
        why = error.text if error.status in (403, 408) else error.reason
        refused = RequestError(f"{request.method} {request.path}: {why}", status=error.status)
    except Exception as error:
        logger.exception("A chat completion failed")
        refused = RequestError(f"{type(error).__name__}: the request could not be answered", status=500)
    # A client that tries again by itself would be told the same.
    return web.json_response(refused.body(), status=refused.status, headers={"x-should-retry": "false"})
