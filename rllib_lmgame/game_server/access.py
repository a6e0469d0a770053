"""Who may play: programs that know the server's token.

A client sends it as ``Authorization: Bearer TOKEN``, or has it in the address, ``http://token:TOKEN@HOST:PORT``, which
HTTP clients send as a password. What a server is (its health, metadata and schemas) is told without a token.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rllib_lmgame.base import http_server
from rllib_lmgame.base.http_server import refuse_pages

MOST_BYTES = 1 << 18
"""Of one message: the longest reply that a game reads, in any way to write it, is shorter."""


def answering(content: Any) -> Handler:
    """A handler that always gives this JSON."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(content)

    return answer


def told_to_all(handler: Handler) -> Handler:
    """A handler whose answer needs no token."""

    async def open_handler(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    open_handler.told_to_all = True  # type: ignore[attr-defined]
    return open_handler


def guard(token: str | None) -> Middleware:
    """What stands before all handlers; without a token it keeps out pages of web sites, which say where they are from.

    Answers 401 for a wrong or missing token, 403 for a page, and 408 for a request that does not come to its end.
    """

    def check(request: web.Request) -> None:
        known = getattr(request.match_info.handler, "told_to_all", False) or request.match_info.http_exception
        if token is None:
            refuse_pages(request, only_here=True)
        elif not known and not hmac.compare_digest(_sent(request), token.encode()):
            raise web.HTTPUnauthorized(
                headers={"WWW-Authenticate": 'Bearer realm="games"'},
                text="a token is needed: `Authorization: Bearer TOKEN`, or http://token:TOKEN@HOST:PORT as address",
            )

    return http_server.guard(check)


def _sent(request: web.Request) -> bytes:
    """The token that a request brings, whatever bytes it is made of; empty if it brings none."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode(errors="surrogateescape")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
