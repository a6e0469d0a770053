"""A server of the Model Context Protocol as its text describes it, with a way to fail named as its argument."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

HOW = sys.argv[1] if len(sys.argv) > 1 else ""
PAGES = [
    [{"name": "add", "description": "Add two numbers.\nSlowly.", "inputSchema": {"type": "object", "properties": {
        "a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}],
    [{"name": "fail", "inputSchema": {"type": "object"}}, {"name": "note", "inputSchema": {"type": "object"}}],
]  # fmt: skip
notes: list[str] = []


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def result_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "add":
        return text(str(arguments["a"] + arguments["b"]))
    if name == "note":
        notes.append(str(arguments))
        return {"content": [*text(f"{len(notes)} notes")["content"], {"type": "image", "data": ""}]}
    return text("it went wrong", isError=True)


def answer(message: dict[str, Any]) -> None:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        assert params["protocolVersion"] and params["clientInfo"]["name"]
        say({"method": "notifications/message", "params": {"level": "info"}})
        say({"id": "mine", "method": "ping"})
        say({"id": "roots", "method": "roots/list"})
        say(
            {
                "id": message["id"],
                "result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}},
            }
        )
    elif method == "tools/list":
        page = int(params.get("cursor", 0))
        more = {"nextCursor": str(page + 1)} if page + 1 < len(PAGES) or HOW == "endless" else {}
        say({"id": message["id"], "result": {"tools": PAGES[page % 2], **more}})
    elif HOW == "ends":
        print("no more memory", file=sys.stderr, flush=True)
        sys.exit(4)
    elif HOW == "hangs":
        time.sleep(600)
    elif HOW == "nonsense":
        print("Hello!", flush=True)
    elif HOW == "floods":
        while True:
            print(json.dumps({"method": "notifications/message", "params": "x" * 60_000}), flush=True)
    elif HOW == "empty":
        say({"id": message["id"], "result": {"content": "words"}})
    elif params["name"] == "add" and params["arguments"].get("a") == 13:
        say({"id": message["id"], "error": {"code": -32602, "message": "thirteen is not added"}})
    else:
        say({"id": message["id"], "result": result_of(params["name"], params["arguments"])})


began = False
for line in sys.stdin:
    received = json.loads(line)
    assert received["jsonrpc"] == "2.0"
    if received.get("method") == "notifications/initialized":
        began = True
    elif "method" in received:
        assert began or received["method"] == "initialize"
        answer(received)
    else:
        assert received["result"] == {} if received["id"] == "mine" else received["error"]["code"] == -32601
