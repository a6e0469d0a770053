"""Addresses of servers that games are played on."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import shown


def check_address(url: Any, key: str, token_key: str | None = None) -> str:
    """The address without a slash at its end; ``token_key`` names the variable of a token.

    Raises: ConfigError: if it is none of a server, or holds a token.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        right = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port if parts is not None else None
    except ValueError:
        right = False
    if right and parts is not None and parts.username is not None:
        instead = f"; {token_key} names the environment variable that holds a token" if token_key else ""
        raise ConfigError(key, f"leave out what stands before `@{parts.hostname}`{instead}")
    if not right or parts is None or parts.query or parts.fragment:
        raise ConfigError(key, f"{shown(url)} is no address of a server; write http://HOST:PORT")
    return str(url).rstrip("/")
