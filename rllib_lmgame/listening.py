"""An HTTP server that runs until it is cancelled."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rllib_lmgame.errors import ConfigError

if TYPE_CHECKING:
    from aiohttp import web


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
            site = web.TCPSite(runner, host, port)
            await site.start()
        except OSError as error:
            raise ConfigError("--port", f"cannot listen at {host}:{port}: {error.strerror or error}") from None
        ready(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def called(request: web.Request) -> str:
    """What the client calls this machine: a page whose own name leads here says no Origin when it reads."""
    try:
        return urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        return ""


def in_address(host: str) -> str:
    """A host as addresses have it: IPv6's in brackets."""
    return f"[{host}]" if ":" in host else host


def check_port(port: int) -> None:
    """Raises: ConfigError: no program can listen at it."""
    if not 0 <= port < 1 << 16:
        raise ConfigError("--port", f"must be from 0 to 65535, got {port}")
