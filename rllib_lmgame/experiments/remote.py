"""Experiment files at an http or https address.

What comes from the network is data and stays data: it is YAML, of bounded size, and may not name code or checkpoints to load.
"""

from __future__ import annotations

import http.client
import importlib.util
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.source import Source, dotted

TIMEOUT_S = 20.0
"""Longest silence of a server, and half of the longest download."""

_CHUNK_BYTES = 65_536
_IMPORT_PATH = re.compile(r"[^\s/:]+:[^\W\d][^\s/:]*")
_DOTTED_PATH = re.compile(r"([^\W\d]\w*)(\.[^\W\d]\w*)+")
_OWN_REPORT = re.compile(r"rllib_lmgame\.algorithms\.(\w+_)?report:\w+_report")
_HINT = "download the file, read it, and run it from disk"


def is_remote(path: str) -> bool:
    """Whether ``path`` is an address that :func:`fetch` takes."""
    return path.startswith(("http://", "https://"))


def fetch(url: str, max_bytes: int, timeout_s: float = TIMEOUT_S) -> bytes:
    """Content of ``url``.

    Args:
        url: An http or https address.
        max_bytes: Largest content.
        timeout_s: Longest silence of the server; the whole may take twice as long.

    Raises:
        ConfigError: if it cannot be had: refused, not found, too large, too slow, a web page.
    """
    if urllib.parse.urlsplit(url).path.endswith(".py"):
        raise ConfigError("", f"{url}: Python is not run from the network; {_HINT}")
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(urllib.request.Request(url, headers={"User-Agent": "rllib-lmgame"}), timeout=timeout_s) as response:
            if response.headers.get_content_type() == "text/html":
                raise ConfigError("", f"{url} is a web page; give the address of the file itself (on GitHub: the one behind `Raw`)")
            return _read(response, url, max_bytes, timeout_s)
    except ConfigError:
        raise
    except urllib.error.HTTPError as error:
        raise ConfigError("", f"{url}: the server answers {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise ConfigError("", f"{url}: no answer within {timeout_s:g} s") from None
        raise ConfigError("", f"cannot fetch {url}: {reason}") from None


def refuse_code(value: Any, source: Source, path: tuple[str | int, ...] = ()) -> None:
    """Raise if a fetched file names code (other than this package's reports), or anything that may run code when it is loaded.

    Raises:
        ConfigError: naming key and line.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            # Tune evaluates `{eval: "..."}` as Python, wherever it stands in a configuration.
            if (key == "trust_remote_code" and item) or (key == "restore" and item is not None) or key == "eval":
                raise _refusal((*path, key), f"`{key}` is", source)
            refuse_code(item, source, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            refuse_code(item, source, (*path, i))
    elif isinstance(value, str) and _names_code(value):
        raise _refusal(path, f"code such as {value!r} is", source)


def _names_code(text: str) -> bool:
    """Whether ``text`` is ``package.module:Name``, or ``package.module.Name`` of a package that is installed."""
    if _IMPORT_PATH.fullmatch(text):
        return not _OWN_REPORT.fullmatch(text)
    match = _DOTTED_PATH.fullmatch(text)
    return match is not None and importlib.util.find_spec(match[1]) is not None


def _refusal(path: tuple[str | int, ...], what: str, source: Source) -> ConfigError:
    return source.error(dotted(path), f"{what} not taken from the network; {_HINT}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but not from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """See the base class."""
        if not is_remote(newurl) or (req.full_url.startswith("https://") and newurl.startswith("http://")):
            raise ConfigError("", f"{req.full_url} leads to {newurl}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read(response: Any, url: str, max_bytes: int, timeout_s: float) -> bytes:
    deadline = time.monotonic() + 2 * timeout_s
    content = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        content += chunk
        if len(content) > max_bytes:
            raise ConfigError("", f"{url} has more than {max_bytes:,} bytes, which is the most an experiment file may have")
        if time.monotonic() > deadline:
            raise ConfigError("", f"{url}: the server is too slow; {len(content):,} bytes came in {2 * timeout_s:g} s")
    missing = int(response.headers.get("Content-Length") or len(content)) - len(content)
    if missing > 0:
        raise ConfigError("", f"{url}: the connection broke off {missing:,} bytes before the end")
    return bytes(content)
