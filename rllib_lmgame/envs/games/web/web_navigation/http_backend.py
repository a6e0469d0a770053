"""A real site over HTTP, as far as it works without scripts.

Pages are fetched with the standard library and read as HTML; links and forms are followed as a browser without
JavaScript would. What this cannot do: run scripts, upload files, show pictures, open frames or other sites. Sites (or
parts of them) that are built by scripts in the browser stay empty here; WebArena's forum and shop work to a large part,
its map does not.

Guarantees, each tested:

1. No request leaves the host, port and scheme of the address given, redirects included.
2. A page costs at most ``timeout_s`` and ``max_bytes``; what is longer is cut, what is slower is given up.
3. No answer of the site raises: errors, other kinds of files and broken connections become pages that say so.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.request
from dataclasses import dataclass
from http.cookiejar import CookieJar
from urllib.parse import quote, urlencode, urljoin, urlsplit

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.web.web_navigation.browser import Fields
from rllib_lmgame.envs.games.web.web_navigation.html_tree import read_page
from rllib_lmgame.envs.games.web.web_navigation.page import Page

PAGES = ("text/html", "application/xhtml+xml")
MOST_REDIRECTS = 8
REDIRECTS = (301, 302, 303, 307, 308)
KEEPS_METHOD = (307, 308)
SAFE = "/%?&=+:@,;~!*'()$[]-._"


@dataclass(frozen=True)
class _Answer:
    status: int
    content_type: str
    charset: str
    location: str | None
    body: bytes
    cut: bool


class HttpBackend:
    """Answers a browser's requests from a running site; cookies last as long as the object.

    Args:
        url: Root of the site, ``http://host:port``; a path behind it is where addresses begin that name the site only.
        timeout_s: Longest time for one request, from the connection to the last byte.
        max_bytes: Bytes of a page that are read.

    Raises:
        ConfigError: if ``url`` is no address of a site.
    """

    def __init__(self, url: str, timeout_s: float = 10.0, max_bytes: int = 1_000_000) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError("env_config.url", f"{url!r} is no address: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("env_config.url", f"{url!r} is no address of a site; expected http://host:port")
        self._scheme, self._host = parts.scheme, parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.root = parts.path.rstrip("/")
        self._timeout, self._max_bytes = timeout_s, max_bytes
        self._cookies = CookieJar()

    def local(self, address: str, base: str = "/") -> str | None:
        """Path (and query) of ``address`` on this site; ``None`` if it leads anywhere else. Relative ones
        begin at ``base``.
        """
        try:
            parts = urlsplit(urljoin(self._origin + base, address.strip()))
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return None
        if (parts.scheme, parts.hostname, port) != (self._scheme, self._host, self._port):
            return None
        path = quote(parts.path or "/", safe=SAFE, errors="replace")
        return path + (f"?{quote(parts.query, safe=SAFE, errors='replace')}" if parts.query else "")

    def request(self, method: str, path: str, fields: Fields) -> Page:
        """The page at ``path``, redirects on this site followed."""
        body = urlencode(list(fields), errors="replace").encode() if method == "post" else None
        current = self.local(path)
        for _ in range(MOST_REDIRECTS):
            if current is None:
                return _notice(path, 0, "This address leads to another site, which is not opened.")
            try:
                answer = self._exchange(current, body)
            except TimeoutError:
                return _notice(current, 0, f"The site did not answer within {self._timeout:g} s.")
            except (OSError, http.client.HTTPException, ValueError) as error:
                return _notice(current, 0, f"The page could not be loaded: {type(error).__name__}.")
            if answer.status not in REDIRECTS or answer.location is None:
                return self._page(current, answer)
            body = body if answer.status in KEEPS_METHOD else None
            path, current = answer.location, self.local(answer.location, current)
        return _notice(path, 0, "The site redirects in a circle.")

    def _page(self, path: str, answer: _Answer) -> Page:
        if answer.content_type == "text/plain":
            return _notice(path, answer.status, *_decode(answer).splitlines()[:200])
        if answer.content_type not in PAGES:
            return _notice(
                path, answer.status, f"This address holds {answer.content_type or 'something'}, not a web page."
            )
        page = read_page(_decode(answer), path, lambda address: self.local(address, path), answer.status)
        if answer.cut:
            page.text(f"(this page is longer than {self._max_bytes} bytes; the rest is left out)")
        return page

    def _headers(self, request: urllib.request.Request) -> dict[str, str]:
        """The headers a request is sent with, the site's cookies among them."""
        self._cookies.add_cookie_header(request)
        headers = {
            "User-Agent": "rllib-lmgame",
            "Accept": "text/html",
            "Accept-Encoding": "identity",
            **dict(request.header_items()),
        }
        if request.data is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        return headers

    def _exchange(self, path: str, body: bytes | None) -> _Answer:
        """One request and its answer. A watchdog shuts the connection at the deadline, however slowly bytes may
        come.
        """
        request = urllib.request.Request(self._origin + path, data=body)
        headers = self._headers(request)
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout)
        late = threading.Event()
        watchdog: threading.Timer | None = None
        try:
            connection.connect()
            # The connection forgets its socket when the answer is read to the end of the stream, so the watchdog is
            # given it now.
            watchdog = threading.Timer(self._timeout, _shut, (connection.sock, late))
            watchdog.daemon = True
            watchdog.start()
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            self._cookies.extract_cookies(response, request)
            content = response.read(self._max_bytes + 1)
            if response.length and len(content) <= self._max_bytes:
                raise http.client.IncompleteRead(content, response.length)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if late.is_set():
                raise TimeoutError from error
            raise
        finally:
            if watchdog is not None:
                watchdog.cancel()
            connection.close()
        if late.is_set():
            raise TimeoutError
        header = response.headers
        return _Answer(
            response.status,
            header.get_content_type() if header.get("Content-Type") else "",
            header.get_content_charset() or "utf-8",
            header.get("Location"),
            content[: self._max_bytes],
            len(content) > self._max_bytes,
        )


def _shut(connected: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):  # It may be closed already.
        connected.shutdown(socket.SHUT_RDWR)


def _decode(answer: _Answer) -> str:
    try:
        return answer.body.decode(answer.charset, "replace")
    except LookupError:
        return answer.body.decode("utf-8", "replace")


def _notice(path: str, status: int, *lines: str) -> Page:
    page = Page(path, f"Error {status}" if status >= 400 else "Not a page" if status == 0 else path, status=status)
    for line in lines:
        page.text(line)
    return page
