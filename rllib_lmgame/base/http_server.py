"""An HTTP server that runs until it is cancelled, and the guard that stands before all of them.

The guard keeps out web pages, requests without the token, and requests that do not come to their end in time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import hmac
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rllib_lmgame.base.errors import ConfigError

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware

BODY_S = 30.0
"""Seconds in which a request must have come to its end."""
NO_PAGES = "web pages may not ask here; programs call this machine 127.0.0.1"


async def listen(
    app: web.Application, host: str, port: int, ready: Callable[[int], None], stop_s: float, cancels: bool = False
) -> None:
    """Serve ``app`` until cancelled; ``ready`` is called with the port when requests are taken.

    Args:
        app: What is served.
        host: Address to listen at.
        port: 0 takes a free one.
        ready: What is called then.
        stop_s: Seconds that requests have to be answered once it is cancelled.
        cancels: What answers a request is cancelled when its client goes away.

    Raises:
        ConfigError: the address is taken, or not this machine's.
    """
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None, shutdown_timeout=stop_s, handler_cancellation=cancels)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise not_listening(host, port, error) from None
        ready(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def not_listening(host: str, port: int, error: OSError) -> ConfigError:
    """Why no program can listen at an address."""
    number = error.errno or 0  # What asyncio says of it is long.
    why = os.strerror(number) if number in errno.errorcode else error.strerror or str(error)
    return ConfigError("--port", f"cannot listen at {host}:{port}: {why}")


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_page(headers: Mapping[str, str], only_here: bool, own_page: bool = False) -> bool:
    """Whether a page of a web site asks, which says where it is from.

    ``only_here``: only programs of this machine may ask; a page whose own name leads here calls it by that name.
    ``own_page``: the page that the server itself sent may ask.
    """
    own = f"http://{headers.get('Host')}" if own_page else None
    try:
        called = urlsplit(f"//{headers.get('Host', '')}").hostname or ""
    except ValueError:
        called = ""
    return headers.get("Origin", own) != own or (only_here and not is_loopback(called))


def refuse_pages(request: web.Request, only_here: bool, own_page: bool = False) -> None:
    """Raises: HTTPForbidden: :func:`is_page`."""
    from aiohttp import web

    if is_page(request.headers, only_here, own_page):
        raise web.HTTPForbidden(text=NO_PAGES)


def sent_token(headers: Mapping[str, str]) -> bytes:
    """The token that a request brings, whatever bytes it is made of; empty if it brings none.

    Programs send it as ``Authorization: Bearer TOKEN``, or have it in the address (``http://token:TOKEN@HOST:PORT``),
    which HTTP clients send as a password.
    """
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode(errors="surrogateescape")
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2] if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        return b""


def open_to_all(handler: Handler) -> Handler:
    """A handler whose answer needs no token."""
    handler.open_to_all = True  # type: ignore[attr-defined]
    return handler


def guard(token: str | None, only_here: bool = True, own_page: bool = False) -> Middleware:
    """What stands before all handlers of a server, which find the request read.

    Answers 403 to a web page, where there is no token; 401 for a wrong or missing token; and 408 for a request that
    does not come to its end. ``only_here`` and ``own_page`` are those of :func:`is_page`.
    """
    from aiohttp import web

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        known = getattr(request.match_info.handler, "open_to_all", False) or request.match_info.http_exception
        if token is None:
            refuse_pages(request, only_here, own_page)
        elif not known and not hmac.compare_digest(sent_token(request.headers), token.encode()):
            raise web.HTTPUnauthorized(
                headers={"WWW-Authenticate": 'Bearer realm="rllib-lmgame"'},
                text="a token is needed: `Authorization: Bearer TOKEN`, or http://token:TOKEN@HOST:PORT as address",
            )
        await read_whole(request)
        return await handler(request)

    return guarded


async def read_whole(request: web.Request) -> bytes:
    """The body. Raises: HTTPRequestTimeout: it does not come to its end; HTTPRequestEntityTooLarge."""
    from aiohttp import web

    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the request did not come to its end in {BODY_S:g} s") from None


def in_address(host: str) -> str:
    """A host as addresses have it: IPv6's in brackets."""
    return f"[{host}]" if ":" in host else host


def check_port(port: int) -> None:
    """Raises: ConfigError: no program can listen at it."""
    if not 0 <= port < 1 << 16:
        raise ConfigError("--port", f"must be from 0 to 65535, got {port}")


def check_free(host: str, port: int) -> int:
    """The port, or a free one for 0, before what takes long is loaded. Raises: ConfigError: it cannot be had."""
    check_port(port)
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(place[:2], family=family) as taken:
            found: int = taken.getsockname()[1]
            return found
    except OSError as error:
        raise not_listening(host, port, error) from None
