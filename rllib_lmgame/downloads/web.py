"""Requests to the addresses of data sets, and downloads that go on where they broke off."""

from __future__ import annotations

import errno
import http.client
import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.storage import is_remote
from rllib_lmgame.base.text import size_text

TIMEOUT_S = 30.0
"""Longest silence of a server."""

TRIES = 5
"""Attempts in a row that bring no new byte before the download is given up."""

PAUSE_S = 1.0
"""Seconds before the next attempt, times the number of failed attempts."""

WITHOUT = "or copy the set's folder in RLLIB_LMGAME_DATA from a machine that has it"

CHUNK = 1 << 20
_PART, _ABOUT = ".part", ".part.json"
BROKEN = (OSError, http.client.HTTPException)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but not from https to http, and takes no token to another host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not is_remote(newurl) or (req.full_url.startswith("https://") and newurl.startswith("http://")):
            raise ConfigError("", f"{req.full_url} leads to {newurl}, which is not followed")
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed is not None and followed.host != req.host:
            followed.remove_header("Authorization")
        return followed


def open_address(url: str, headers: Mapping[str, str] = {}, timeout_s: float = TIMEOUT_S) -> Any:
    """The answer of an http(s) address. Raises: OSError, HTTPException, ConfigError (a redirection not followed)."""
    request = urllib.request.Request(url, headers={"User-Agent": "rllib-lmgame", **headers})
    return urllib.request.build_opener(Redirects).open(request, timeout=timeout_s)


def refused(url: str, error: Exception) -> ConfigError:
    """The error of a failed request as a ConfigError."""
    if isinstance(error, urllib.error.HTTPError):
        return ConfigError("", f"{url}: the server answers {error.code} {error.reason}")
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return ConfigError("", f"{url}: no answer within {TIMEOUT_S:g} s; {WITHOUT}")
    why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return ConfigError("", f"cannot fetch {url}: {why}; {WITHOUT}")


def download(
    url: str,
    target: Path,
    headers: Mapping[str, str] = {},
    size: int | None = None,
    report: Callable[[int, int | None], None] = lambda done, size: None,
) -> None:
    """Fetch a file to ``target``, which gets its name when it is whole.

    What was fetched before stays in ``target.part`` and is gone on with, if the server says it is the same file still.

    Args:
        url: Of the file.
        target: Where it goes; its folder exists.
        headers: Of the request.
        size: Bytes it must have, where known.
        report: Called with the bytes that are here, and those there will be.

    Raises: ConfigError: the server refuses or breaks off for good, it sends something else, or the disk is full.
    """
    part, about = target.with_name(target.name + _PART), target.with_name(target.name + _ABOUT)
    failed = most = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        if before == size:  # Whole, but for its name.
            break
        try:
            _go_on(url, part, about, headers, size, report)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 416, 429):
                raise refused(url, error) from None
            if error.code == 416:  # The file has changed, or what is here is more than all of it.
                part.unlink(missing_ok=True)
            problem: Exception = error
        except BROKEN as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise ConfigError("", f"{part} cannot be written: {error.strerror}") from None
            problem = error
        here = part.stat().st_size if part.exists() else 0
        failed, most = (0, here) if here > max(before, most) else (failed + 1, most)
        if failed >= TRIES:
            kept = f"; {here:,} bytes are kept, and the same command goes on from there" if here else ""
            raise ConfigError("", refused(url, problem).message + kept) from None
        time.sleep(PAUSE_S * failed)
    part.replace(target)
    about.unlink(missing_ok=True)


def _go_on(
    url: str,
    part: Path,
    about: Path,
    headers: Mapping[str, str],
    size: int | None,
    report: Callable[[int, int | None], None],
) -> None:
    here = part.stat().st_size if part.exists() else 0
    known = _known(about, url) if here else None
    ranged = {"Range": f"bytes={here}-", "If-Range": known} if here and known else {}
    with open_address(url, {**headers, **ranged}) as answer:
        if answer.headers.get_content_type() == "text/html":
            raise ConfigError("", f"{url} answers with a web page instead of a file (a proxy, or a page to log in?)")
        goes_on = answer.status == 206 and str(answer.headers.get("Content-Range", "")).startswith(f"bytes {here}-")
        done = here if goes_on else 0
        coming = answer.headers.get("Content-Length")
        whole = done + int(coming) if coming is not None and coming.isdigit() else None
        if size is not None and whole is not None and whole != size:
            raise ConfigError("", f"{url} has {whole:,} bytes; {size:,} were announced")
        whole = whole if whole is not None else size
        check_room(part.parent, (whole or 0) - done, url)
        with part.open("ab" if goes_on else "wb") as file:
            about.write_text(json.dumps({"url": url, "validator": _validator(answer.headers)}), encoding="utf-8")
            while chunk := answer.read1(CHUNK):
                file.write(chunk)
                done += len(chunk)
                report(done, whole)
                if whole is not None and done > whole:
                    raise ConfigError("", f"{url} goes on behind its {whole:,} bytes")
        if whole is not None and done < whole:
            raise ConnectionError(f"the connection broke off {whole - done:,} bytes before the end")


def _validator(headers: Any) -> str | None:
    """The validator that identifies this version of a file: a strong entity tag or a date."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _known(about: Path, url: str) -> str | None:
    try:
        said = json_files.read_mapping(about, 1 << 16)
    except (OSError, ValueError):
        return None
    return said.get("validator") if said.get("url") == url else None


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raises: ConfigError: the disk has less than ``needed`` bytes left."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            "",
            f"{what} needs {size_text(needed)} in {folder}, where {size_text(free)} are free; make room, or set "
            "RLLIB_LMGAME_DATA to a folder on a larger disk",
        )
