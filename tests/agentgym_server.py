"""Servers that speak as AgentGym's do, one for each task, with an item of two steps and every fault there is."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from endpoint_server import listening

NUMBERED = ("textcraft", "babyai", "sciworld", "alfworld", "maze", "wordle")
"""Tasks whose sessions are called ``id``; those of all others are called ``env_idx``."""

ITEM_IS: Mapping[str, str] = {
    **dict.fromkeys(("textcraft", "babyai", "sciworld"), "data_idx"),
    **dict.fromkeys(("alfworld", "maze"), "game"),
    "wordle": "seed",
    "webshop": "session_id",
    "sqlgym": "item_id",
    "webarena": "idx",
    **dict.fromkeys(("searchqa", "weather", "movie", "todo", "academia", "sheet"), "id"),
}
"""What ``reset`` calls the number of the item."""

CLOSES = ("textcraft", "babyai", "sciworld", "webarena", "searchqa")
PATHS = {"maze": "/maze", "wordle": "/wordle"}
STEP_MORE = {"alfworld": {"available_actions": ["look", "win"]}, "webarena": {"truncated": False, "info": {}}}
TOOLS = ("weather", "movie", "todo", "academia", "sheet")

WINS: Mapping[str, str] = {
    "webshop": "click[buy {item}]",
    "sqlgym": "SELECT {item}",
    "webarena": "```stop [{item}]```",
    "searchqa": "<think>known</think><answer>{item}</answer>",
    **dict.fromkeys(TOOLS, 'Action: finish with Action Input: {{"answer": "{item}"}}'),
}
"""What has to arrive for the item to be won, where it is not ``win ITEM``."""

ITEMS = 10_000
"""Items there are."""


@dataclass
class FakeServer:
    """A task's server. ``fault(path, body)`` may raise, wait, or give another answer: ``(status, bytes)``."""

    task: str
    fault: Callable[[str, dict[str, Any]], tuple[int, bytes] | None] | None = None
    url: str = ""
    open: dict[int, dict[str, Any]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    most: int | None = None
    """Sessions it has; then it gives out the old ones again, in turn."""
    created: int = 0
    most_open: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def key(self) -> str:
        return "id" if self.task in NUMBERED else "env_idx"

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        with self.lock:
            self.asked[path] += 1
            self.bodies.append((path, body))
        if self.fault is not None and (wrong := self.fault(path, body)) is not None:
            return wrong
        if path == "/" and method == "GET":
            return 200, json.dumps("ok").encode()
        path = path.removeprefix(PATHS.get(self.task, ""))
        handler = getattr(self, f"{method.lower()}_{path[1:]}", None)
        if handler is None or (path == "/close" and self.task not in CLOSES):
            return 404, b'{"detail":"Not Found"}'
        with self.lock:
            try:
                return 200, json.dumps(handler(body)).encode()
            except Exception as error:
                if self.task in NUMBERED:
                    return 200, json.dumps({"error": repr(error)}).encode()
                return 500, b"Internal Server Error"

    def post_create(self, body: dict[str, Any]) -> Any:
        if self.task in ("searchqa", *TOOLS):
            assert body["id"] == 0
        number, self.created = self.created % (self.most or sys.maxsize), self.created + 1
        self.open[number] = {}
        self.most_open = max(self.most_open, len(self.open))
        if self.task in NUMBERED:
            return {"id": number, "observation": "made", "done": False, "reward": 0}
        return {"env_idx": number} if self.task == "webarena" else number

    def post_reset(self, body: dict[str, Any]) -> Any:
        item = body[ITEM_IS[self.task]]
        assert isinstance(item, int) and 0 <= item < ITEMS, "no such item"
        assert body.get("world_type", "Text") == "Text" and ("world_type" in body) == (self.task == "alfworld")
        state = self.open[body[self.key]]
        state.update(item=item, steps=0, done=False, score=0, seen=f"item {item}")
        if self.task == "sciworld":
            return {"task_description": "Your task is to", "observation": state["seen"], "score": 0, "done": False}
        if self.task in NUMBERED:
            more = {"available_actions": ["look", "win"]} if self.task == "alfworld" else {}
            return {"observation": state["seen"], "reward": 0, "score": 0, "done": False, **more}
        if self.task == "webarena":
            return {"observation": state["seen"], "sites": ["shop"], "object": "find"}
        return state["seen"] if self.task in ("searchqa", *TOOLS) else [state["seen"], None]

    def get_observation(self, body: dict[str, Any]) -> Any:
        return self.open[int(body[self.key])]["seen"]

    def get_filtered_vocab(self, body: dict[str, Any]) -> Any:
        assert self.task == "wordle" and int(body["id"]) in self.open
        return ["crane", "slate"]

    def get_available_actions(self, body: dict[str, Any]) -> Any:
        assert self.task == "webshop" and int(body["env_idx"]) in self.open
        return {"has_search_bar": True, "clickables": ["search", "buy 7"]}

    def post_step(self, body: dict[str, Any]) -> Any:
        state, action = self.open[body[self.key]], body["action"]
        assert not state["done"], "the task has finished"
        state["steps"] += 1
        won = action == WINS.get(self.task, "win {item}").format(item=state["item"])
        state["done"] = won or action == "lose"
        state["seen"] = "won" if won else f"heard {action}"
        reward: float = 1 if won else 0
        if self.task == "maze":
            reward = 0 if won else -1
        if self.task == "sciworld":
            state["score"] = 100 if won else -100 if action == "lose" else 40
        if self.task == "babyai":
            state["score"] = 0.7 if won else 0
        said = {"state" if self.task in ("webshop", "sqlgym") else "observation": state["seen"], "reward": reward}
        if self.task in ("sciworld", "babyai"):
            said["score"] = state["score"]
        done = "terminated" if self.task == "webarena" else "done"
        return said | {done: state["done"], **STEP_MORE.get(self.task, {})}

    def post_close(self, body: dict[str, Any]) -> Any:
        del self.open[body[self.key]]
        return True


class Winner:
    """A scripted player who wins every item but those whose number ends in 3."""

    def act(self, session: Any, agent_id: str, observation: Any, rng: Any) -> str:
        number = re.search(r"item (\d+)", observation.text)
        return "lose" if number is None or number[1].endswith("3") else f"win {number[1]}"


@contextmanager
def serving(task: str, **options: Any) -> Iterator[FakeServer]:
    """A server of ``task`` on loopback."""
    fake = FakeServer(task, **options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self.say("GET", parts.path, {key: value[0] for key, value in parse_qs(parts.query).items()})

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.say("POST", self.path, json.loads(content) if content else {})

        def say(self, method: str, path: str, body: dict[str, Any]) -> None:
            try:
                status, content = fake.answer(method, path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:  # Whoever asked has gone.
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A fault that was asked for."""

    with listening(Server(("127.0.0.1", 0), Handler)) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        yield fake
