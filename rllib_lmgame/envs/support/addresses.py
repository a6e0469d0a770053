"""Addresses of servers that games are played on."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.text import shown


def check_address(url: Any, key: str) -> str:
    """The address without a slash at its end. Raises: ConfigError: if it is none of a server."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        right = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port if parts is not None else None
    except ValueError:
        right = False
    if not right or parts is None or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(key, f"{shown(url)} is no address of a server; write http://HOST:PORT")
    return str(url).rstrip("/")
