"""An OpenAI-compatible server of one model that knows one move."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def listening(server: Any) -> Iterator[Any]:
    """The server while it answers, in a thread of its own."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class JSONRequests(BaseHTTPRequestHandler):
    """Requests and answers in JSON."""

    def asked(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def send(self, status: int, content: Any) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


class Endpoint(ThreadingHTTPServer):
    """An OpenAI-compatible server whose model always says ``text``; ``refused`` of its requests it does not take, and
    ``unanswered`` ones it leaves waiting.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.text = "<answer>rock</answer>"
        self.refused: set[int] = set()
        self.unanswered: set[int] = set()
        self.asked: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    @property
    def player(self) -> str:
        return f"openai:stone@http://127.0.0.1:{self.server_address[1]}/v1"


class _Requests(JSONRequests):
    server: Endpoint

    def do_GET(self) -> None:
        self.send(200, {"data": [{"id": "stone"}]})

    def do_POST(self) -> None:
        body = self.asked()
        with self.server.lock:
            number = len(self.server.asked)
            self.server.asked.append(body)
        if number in self.server.refused:
            return self.send(400, {"error": {"message": "not today"}})
        if number in self.server.unanswered:
            threading.Event().wait()
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        return self.send(200, {"choices": [{"message": {"content": self.server.text}}], "usage": usage})
