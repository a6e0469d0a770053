"""The page on a loopback address, for as long as the command runs.

Only this machine is answered, and only under a loopback name: a page of somebody else's that makes its own name stand
for 127.0.0.1 reads nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from aiohttp import web

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import guard, listen
from rllib_lmgame.base.text import first_line
from rllib_lmgame.envs.support.loop_thread import submitted
from rllib_lmgame.viewer.library import Library, Source, as_json, with_rows
from rllib_lmgame.viewer.page import page

LOOPBACK = "127.0.0.1"
STOP_S = 1.0
_PAUSE_S = 1.0
"""Between two looks at files that are followed."""
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def local_app(own_page: bool = False) -> web.Application:
    """An application for pages of this machine; ``own_page`` is that of :func:`~.http_server.is_page`."""

    async def harden(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    app = web.Application(middlewares=[guard(None, own_page=own_page)])
    app.on_response_prepare.append(harden)
    return app


class Viewer:
    """Serves the episodes of ``library`` on ``port`` (0: a free one) from when it is entered.

    ``more`` gives the files there are now; they are looked for again and again. Entering it raises ConfigError if the
    port is taken.
    """

    def __init__(self, library: Library, title: str, port: int, more: Callable[[], Sequence[Source]]) -> None:
        self.library, self.title, self.address, self._port, self._more = library, title, "", port, more
        self._ended = threading.Event()

    def __enter__(self) -> Viewer:
        port: Future[int] = Future()
        self._serving = submitted(listen(self.app(), LOOPBACK, self._port, port.set_result, STOP_S))
        wait((port, self._serving), return_when=FIRST_COMPLETED)
        if not port.done():
            self._serving.result()
        self.address = f"http://{LOOPBACK}:{port.result()}/"
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._serving.cancel()
        self._reader.join(timeout=10)

    def wait(self) -> None:
        """Block until the viewer is stopped."""
        self._ended.wait()

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                self.library.add(self._more())
                for _ in self.library.refresh():
                    if self._ended.is_set():
                        return
            except ConfigError:  # What was named is gone; it may come back.
                self.library.reading = False
            self._ended.wait(_PAUSE_S)

    def app(self) -> web.Application:
        """The application that is served."""
        app = local_app()
        app.router.add_get("/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            content = await asyncio.to_thread(self.answer, request.path, request.query)
        except (ValueError, KeyError, IndexError, OSError) as error:
            raise web.HTTPBadRequest(text=first_line(error).encode(errors="replace").decode()) from None
        if content is None:
            raise web.HTTPNotFound
        kind = "text/html" if isinstance(content, str) else "application/json"
        body = content.encode() if isinstance(content, str) else content
        return web.Response(body=body, content_type=kind, charset="utf-8")

    def answer(self, path: str, asked: Mapping[str, str]) -> bytes | str | None:
        """The answer to a request: JSON, the page, or ``None`` where there is no such address.

        Raises: ValueError, KeyError, IndexError, OSError: what is asked for cannot be given.
        """
        library = self.library
        if path == "/":
            return page()
        if path == "/api/news":
            rows, head = library.news(int(asked["from"]), int(asked["generation"]))
            return with_rows({**head, "title": self.title}, rows)
        if path == "/api/episode":
            if int(asked["generation"]) != library.generation:
                raise ValueError("the files were written anew; this episode is read again")
            return as_json(library.episode(int(asked["number"])))
        if path == "/api/search":
            return as_json(library.search(asked["text"]))
        return None
