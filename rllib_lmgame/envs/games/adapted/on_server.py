"""How games ask the servers of others that they are on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_client import Broken, Late, NoAnswer, Reply, Unreachable, ask
from rllib_lmgame.base.step_timer import WaitedTooLong, waiting

CHECK_S = 10.0
"""Seconds that a server has to answer before a run."""
LONGEST_PAUSE_S = 5.0
"""Between a request that finds no server, or a full one, and the next try."""
MOST_BYTES = 16_000_000
"""Of one answer."""

T = TypeVar("T")


class NotNow(Exception):
    """The server is not there, or full."""


class Wrong(Exception):
    """What the server did, in words that follow its address."""


class BrokeOff(Wrong):
    """The connection broke; the server may have heard the request."""


def patiently(ask: Callable[[], T], where: str, retries: int) -> T:
    """What is answered, asked for again while the server is full or not there. Raises: WaitedTooLong."""
    problem = ""
    for attempt in range(retries + 1):
        with waiting():
            if attempt:
                time.sleep(min(LONGEST_PAUSE_S, 0.1 * 2 ** (attempt - 1)))
            try:
                return ask()
            except NotNow as error:
                problem = str(error)
    tries = f" (asked {retries + 1} times)" if retries else ""
    raise WaitedTooLong(f"{where} {problem}{tries}")


async def answer_of(http: Any, method: str, url: str, timeout_s: float, **how: Any) -> Reply:
    """An answer over HTTP. Raises: NotNow: the server is not there; Wrong: there is no whole answer."""
    try:
        return await ask(http, method, url, timeout_s, MOST_BYTES, **how)
    except Unreachable as error:
        raise NotNow(f"is not there ({error})") from None
    except Broken as error:
        raise BrokeOff(f"broke off: {error}") from None
    except Late:
        raise Wrong(f"gave no whole answer in timeout_s={timeout_s:g}") from None
    except NoAnswer as error:
        raise Wrong(str(error)) from None


TOKEN = "Environment variable that holds the token of the server; null: it needs none."


def refusal(status: int) -> str:
    """What a server did that answers so."""
    if status in (401, 403):
        return f"refuses the token, or its absence (status {status}); env_config.token_variable names one"
    return f"answers status {status}"


def without(token: str | None, said: object) -> str:
    """What a server said, without its token."""
    return str(said) if token is None else str(said).replace(token, "***")


def read_token(variable: str | None) -> str | None:
    """The token in an environment variable. Raises: ConfigError: it holds none."""
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError("env_config.token_variable", f"the token is to stand in ${variable}, which holds none")
    return token
