"""Where an endpoint is, which key it is given, and how it is asked."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import Group, option

KNOWN_KEYS = {"api.openai.com": "OPENAI_API_KEY"}
"""Hosts with a well-known variable for the key, which is sent to no other host."""

ENDPOINT = "openai:"
"""Begins what names a model behind an endpoint."""
HUGGING_FACE = "hf:"
"""Before a model's name or directory, where it stands among other things."""

_FORM = re.compile(rf"{ENDPOINT}(?P<model>\S+?)@(?P<url>https?://[^#\s]+)(?:#(?P<variable>\S*))?")


@dataclass(frozen=True)
class Address:
    """A model behind an endpoint.

    ``url`` goes up to the version (``https://host/v1``), ``variable`` is the environment variable of the key (``None``:
    no key is sent), ``flag`` is where the endpoint is named, for messages.
    """

    model: str
    url: str
    variable: str | None
    flag: str = "--players"

    def key(self) -> str | None:
        """The key, sent only to :attr:`url`. Raises: ConfigError: if the variable is not set."""
        if self.variable is None:
            return None
        key = os.environ.get(self.variable, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(self.flag, f"the key of {self.url} is to stand in ${self.variable}, which holds none")
        return key


def read_address(source: str, flag: str = "--players") -> Address:
    """The address in ``openai:MODEL@URL`` or ``openai:MODEL@URL#VARIABLE``. Raises: ConfigError: if it is none."""
    match = _FORM.fullmatch(source)
    if match is None:
        raise ConfigError(flag, f"{source!r} is no endpoint; write openai:MODEL@http://HOST:PORT/v1")
    url, variable = match["url"].rstrip("/").removesuffix("/chat/completions"), match["variable"]
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        (host or "").encode("idna")  # As the name is asked for: no label longer than 63 letters, none empty.
    except ValueError as error:
        raise ConfigError(flag, f"{source!r}: {error}") from None
    if not host or parts.query or parts.username is not None:
        raise ConfigError(flag, f"{source!r}: an endpoint has a host, and neither user nor query in its address")
    if variable is not None and not variable.isidentifier():
        raise ConfigError(flag, f"{source!r}: {variable!r} is no name of an environment variable")
    known = KNOWN_KEYS.get(host) if parts.scheme == "https" else None
    return Address(match["model"], url, variable or known, flag)


class EndpointOptions(Group):
    """The ``endpoint`` section of ``--config``."""

    attempts: int = option(5, "Attempts of one request before its game is given up.", ge=1, le=100)
    first_wait_s: float = option(
        0.5, "Wait before the second attempt; it doubles each time, unless the server names another.", ge=0
    )
    longest_wait_s: float = option(30.0, "Longest wait between two attempts, whatever the server asks for.", ge=0)
    max_answer_bytes: int = option(262_144, "Largest answer that is read.", ge=1024)
    request: dict[str, Any] = option(
        {}, "Further fields of the request; null leaves one out: `{max_tokens: null, max_completion_tokens: 512}`."
    )
