"""An OpenAI-compatible endpoint of chat completions, asked by the programs that agents are."""

from __future__ import annotations

import hmac
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from rllib_lmgame.base import json_files
from rllib_lmgame.base.http_server import read_whole, refuse_pages, sent_token
from rllib_lmgame.endpoints.completions import ChatReply, ChatRequest, RequestError, read_request

logger = logging.getLogger(__name__)

MOST_BYTES = 4 << 20
"""Of one request."""
CREATED = 0
"""When a completion was made: no clock is read for it."""

Answer = Callable[[ChatRequest], Awaitable[ChatReply]]
"""Replies to a request. Raises: RequestError: it cannot be replied to."""


class ChatEndpoint:
    """Who may ask, and who replies: each token has an answer of its own.

    Args:
        model: The name that the model goes by; requests may use any.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._answers: dict[str, Answer] = {}

    def admit(self, token: str, answer: Answer) -> None:
        """From now on requests with ``token`` get ``answer``."""
        self._answers[token] = answer

    def dismiss(self, token: str) -> None:
        """Reject requests with ``token`` from now on."""
        self._answers.pop(token, None)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST_BYTES, middlewares=[_told])
        app.add_routes([web.post("/v1/chat/completions", self._complete), web.get("/v1/models", self._models)])
        return app

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
        refuse_pages(request, only_here=True)
        sent = sent_token(request.headers)
        found = [answer for token, answer in [*self._answers.items()] if hmac.compare_digest(sent, token.encode())]
        if not found:
            why = "no such token: its episode may be over" if sent else "send `Authorization: Bearer TOKEN` (api_key)"
            raise RequestError(why, code="invalid_api_key", status=401)
        return found[0]


async def _body(request: web.Request) -> Mapping[str, object]:
    """Raises: RequestError: no JSON, or too much of it; HTTPRequestTimeout: it does not come to its end."""
    try:
        body = await read_whole(request)
    except web.HTTPRequestEntityTooLarge:
        raise RequestError(f"the request has more than {MOST_BYTES:,} bytes", status=413) from None
    try:
        return json_files.parse(body)
    except ValueError:
        raise RequestError("the request is no JSON") from None


@web.middleware
async def _told(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]):
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
