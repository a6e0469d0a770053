"""The page on a loopback address, for as long as the command runs.

Only this machine is answered, and only under a loopback name: a page of somebody else's that makes its own name stand
for 127.0.0.1 reads nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.viewer.curves import Curves
from rllib_lmgame.viewer.library import Library, Source, as_json
from rllib_lmgame.viewer.page import page

LOOPBACK = "127.0.0.1"
_NAMES = (LOOPBACK, "localhost", "[::1]")
_PAUSE_S = 1.0
"""Between two looks at files that are followed."""


class Viewer:
    """Serves the episodes of ``library`` on ``port`` (0: a free one) from when it is entered.

    ``more`` gives the files there are now; they are looked for again and again. Raises: ConfigError: the port is taken.
    """

    def __init__(
        self,
        library: Library,
        title: str,
        port: int,
        more: Callable[[], Sequence[Source]],
        curves: Curves | None = None,
    ) -> None:
        self.library, self.title, self._more = library, title, more
        self.curves = Curves([]) if curves is None else curves
        self._ended = threading.Event()
        viewer = self

        class Handler(_Handler):
            answers = viewer.answer

        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), Handler)
        except OSError as error:
            why = f"{port} cannot be listened on: {error.strerror or error}; name another one, or 0 for a free one"
            raise ConfigError("--port", why) from None
        self._server.daemon_threads = True
        self.address = f"http://{LOOPBACK}:{self._server.server_address[1]}/"

    def __enter__(self) -> Viewer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._reader.join(timeout=10)

    def wait(self) -> None:
        """Until somebody interrupts."""
        self._ended.wait()

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                self.library.add(self._more())
                self.curves.refresh()
                for _ in self.library.refresh():
                    if self._ended.is_set():
                        return
            except ConfigError:  # What was named is gone; it may come back.
                self.library.reading = False
            self._ended.wait(_PAUSE_S)

    def answer(self, path: str, asked: Mapping[str, str]) -> bytes | str | None:
        """The answer to a request: JSON, the page, or ``None`` where there is no such address.

        Raises: ValueError, IndexError, OSError: what is asked for cannot be given.
        """
        library = self.library
        if path == "/":
            return page()
        if path == "/api/news":
            return self._news(int(asked["from"]), int(asked["generation"]), int(asked["changes"]), int(asked["drawn"]))
        if path == "/api/episode":
            if int(asked["generation"]) != library.generation:
                raise ValueError("the files were written anew; this episode is read again")
            return as_json(library.episode(int(asked["number"])))
        if path == "/api/search":
            return as_json(library.search(asked["text"]))
        return None

    def _news(self, first: int, generation: int, changes: int, drawn: int) -> bytes:
        rows, head = self.library.news(first, generation, changes)
        if drawn < self.curves.changed:
            head |= {"curves": self.curves.figures(), "drawn": self.curves.changed}
        return as_json({**head, "title": self.title, "rows": None}).replace(
            b'"rows":null', b'"rows":[' + b",".join(rows) + b"]", 1
        )


class _Handler(BaseHTTPRequestHandler):
    answers: Callable[[str, Mapping[str, str]], bytes | str | None]
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        if (host.rpartition(":")[0] if host[-1:].isdigit() and ":" in host else host) not in _NAMES:
            return self._send(HTTPStatus.FORBIDDEN, b"this page is read under a loopback name", "text/plain")
        address = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        try:
            content = type(self).answers(address.path, asked)
        except (ValueError, KeyError, IndexError, OSError) as error:
            return self._send(HTTPStatus.BAD_REQUEST, first_line(error).encode("utf-8", "replace"), "text/plain")
        if content is None:
            return self._send(HTTPStatus.NOT_FOUND, b"there is no such address", "text/plain")
        if isinstance(content, str):
            return self._send(HTTPStatus.OK, content.encode(), "text/html")
        return self._send(HTTPStatus.OK, content, "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing: the terminal is the command's."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # The browser went away.
            self.close_connection = True
