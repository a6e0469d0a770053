"""Downloads experiment files, with bounds on size and time; :mod:`.fetched` says what they may set."""

from __future__ import annotations

import http.client
import queue
import threading
import urllib.error
import urllib.parse
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.data_sets.web import open_address

TIMEOUT_S = 20.0
"""Longest silence of a server, and half of the longest download."""

_CHUNK_BYTES = 65_536


def fetch(url: str, max_bytes: int, timeout_s: float = TIMEOUT_S) -> bytes:
    """Content of an http(s) address. Raises: ConfigError: refused, not found, too large, too slow, or a web page.

    ``timeout_s`` is the longest silence of the server; the whole download may take twice as long.
    """
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_fetch(url, max_bytes, timeout_s))
        except Exception as error:
            answers.put(error)

    # A limit on a socket's silence is none on an answer that comes byte by byte, in the status line already.
    threading.Thread(target=ask, name="fetch", daemon=True).start()
    try:
        answer = answers.get(timeout=2 * timeout_s)
    except queue.Empty:
        slow = f"the server is too slow; its answer was not whole within {2 * timeout_s:g} s"
        raise ConfigError("", f"{url}: {slow}") from None
    if isinstance(answer, bytes):
        return answer
    raise _named(answer, url, timeout_s) from None


def _named(error: Exception, url: str, timeout_s: float) -> Exception:
    if isinstance(error, urllib.error.HTTPError):
        return ConfigError("", f"{url}: the server answers {error.code} {error.reason}")
    if isinstance(error, ConfigError) or not isinstance(error, OSError | ValueError | http.client.HTTPException):
        return error
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return ConfigError("", f"{url}: no answer within {timeout_s:g} s")
    return ConfigError("", f"cannot fetch {url}: {reason}")


def _fetch(url: str, max_bytes: int, timeout_s: float) -> bytes:
    if urllib.parse.urlsplit(url).path.endswith(".py"):
        why = "Python is not run from the network; download the file, read it, and run it from disk"
        raise ConfigError("", f"{url}: {why}")
    with open_address(url, timeout_s=timeout_s) as response:
        if response.headers.get_content_type() == "text/html":
            hint = "give the address of the file itself (on GitHub: the one behind `Raw`)"
            raise ConfigError("", f"{url} is a web page; {hint}")
        return _read(response, url, max_bytes)


def _read(response: Any, url: str, max_bytes: int) -> bytes:
    content = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        content += chunk
        if len(content) > max_bytes:
            most = "which is the most an experiment file may have"
            raise ConfigError("", f"{url} has more than {max_bytes:,} bytes, {most}")
    missing = int(response.headers.get("Content-Length") or len(content)) - len(content)
    if missing > 0:
        raise ConfigError("", f"{url}: the connection broke off {missing:,} bytes before the end")
    return bytes(content)
