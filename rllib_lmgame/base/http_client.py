"""Bounded requests over HTTP.

1. An answer is whole within its time, however slowly bytes come, and has at most so many bytes.
2. No redirect is followed, no proxy asked, no cookie kept, and nothing unpacked: what is small on its way may be large.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp


class NoAnswer(Exception):
    """There is no whole answer; the message says why, in words that follow an address."""


class TooLong(NoAnswer):
    """The answer has too many bytes."""


class Late(NoAnswer):
    """The answer was not whole in time."""


class Broken(NoAnswer):
    """The connection broke."""


class Unreachable(NoAnswer):
    """Nothing was sent: there is no such server now."""


@dataclass(frozen=True)
class Reply:
    """An answer, whatever its status."""

    status: int
    content: bytes
    headers: Mapping[str, str]


def client(headers: Mapping[str, str] = {}, **how: Any) -> aiohttp.ClientSession:
    """A client that sends ``headers`` with each request; ``how`` are more arguments of aiohttp's."""
    sent = {"Accept-Encoding": "identity", **headers}
    jar = aiohttp.DummyCookieJar()
    return aiohttp.ClientSession(headers=sent, auto_decompress=False, cookie_jar=jar, trust_env=False, **how)


async def ask(
    http: aiohttp.ClientSession, method: str, url: str, limit_s: float | None, most_bytes: int, **how: Any
) -> Reply:
    """The answer to one request (``json=``, ``headers=``, ...). Raises: NoAnswer."""
    content = bytearray()
    no_limit = aiohttp.ClientTimeout()  # Theirs are on silence and connecting alone.
    try:
        async with asyncio.timeout(limit_s):
            async with http.request(method, url, allow_redirects=False, timeout=no_limit, **how) as response:
                async for part in response.content.iter_chunked(1 << 16):
                    content += part
                    if len(content) > most_bytes:
                        raise TooLong(f"sent more than {most_bytes:,} bytes")
                return Reply(response.status, bytes(content), response.headers)
    except TimeoutError:
        raise Late("gave no answer in time" if limit_s is None else f"gave no answer within {limit_s:g} s") from None
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
        raise Unreachable(why(error)) from None
    except (aiohttp.ClientError, OSError) as error:
        raise Broken(why(error)) from None


def why(error: BaseException) -> str:
    """Why there is no answer, in the system's words where it has some."""
    number = getattr(getattr(error, "os_error", error), "errno", None)
    return os.strerror(number) if number and number > 0 else str(error) or type(error).__name__
