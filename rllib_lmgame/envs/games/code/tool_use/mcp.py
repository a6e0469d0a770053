"""A client of the Model Context Protocol for a server that is a program: JSON-RPC, a line each, on its two pipes.

1. Every request ends: with an answer, or with :class:`McpError` after bounded time and output. The server is then
   ended, with all it started.
2. What it writes to its error output is kept for messages, its end alone.
3. The server ends with this process: its input is closed.

Of the protocol (modelcontextprotocol.io, 2025-06-18) these are used: ``initialize``, ``tools/list``, ``tools/call``,
and ``ping`` of the server's; other requests of the server's are refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.step_timer import ready_pipes
from rllib_lmgame.base.text import one_line, printable

VERSION = "2025-06-18"
MAX_BYTES = 4 << 20
"""Of all that a server writes while one request is answered."""

MAX_PAGES = 20
KEPT = 2_000
SHOWN = 200
END_S = 1.0
"""How long a server has to end by itself once its input is closed."""

NO_METHOD = -32601


class McpError(Exception):
    """The server is not there, hangs, or answers nonsense; the message says which."""


class McpRefusal(Exception):
    """The server answers a request with an error."""


class McpServer:
    """A server that runs, and has said what it is.

    Args:
        command: The program and its arguments.
        limit_s: Of each request.

    Raises: McpError: if it does not start, or is no such server.
    """

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._name, self._limit_s = command[0], limit_s
        self._number = 0
        self._lines: deque[bytes] = deque()
        self._unsent = self._unread = self._complaints = b""
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise McpError(f"cannot start {self._name!r}: {getattr(error, 'strerror', None) or error}") from None
        pipes: Any = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = pipes
        for pipe in pipes:
            os.set_blocking(pipe.fileno(), False)
        about = {"name": "rllib-lmgame", "version": "1"}
        try:
            self.request("initialize", {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": about})
        except McpRefusal as error:
            self.close()
            raise McpError(f"{self._name!r} refuses to begin: {error}") from None
        self._send({"method": "notifications/initialized"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def tools(self) -> list[Mapping[str, Any]]:
        """What the server lists, each with ``name`` and perhaps ``description`` and ``inputSchema``."""
        found: list[Mapping[str, Any]] = []
        cursor: Any = None
        for _ in range(MAX_PAGES):
            try:
                page = self.request("tools/list", {} if cursor is None else {"cursor": cursor})
            except McpRefusal as error:
                raise self._failed(f"lists no tools: {error}") from None
            tools, cursor = page.get("tools"), page.get("nextCursor")
            if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
                raise self._failed("answers tools/list with no list of tools")
            found += tools
            if cursor is None:
                return found
        raise self._failed(f"lists more than {MAX_PAGES} pages of tools")

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool says; an error of the tool's begins with ``Error:``."""
        try:
            result = self.request("tools/call", {"name": name, "arguments": dict(arguments)})
        except McpRefusal as error:
            return f"Error: {error}"
        content = result.get("content")
        if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
            raise self._failed("answers tools/call without content")
        parts = [
            str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type')}]" for part in content
        ]
        text = "\n".join(parts) or json.dumps(result.get("structuredContent", ""), ensure_ascii=False)
        return f"Error: {text}" if result.get("isError") else text

    def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of one request.

        Raises:
            McpRefusal: the server answers it with an error.
            McpError: it does not answer.
        """
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        until, read = time.monotonic() + self._limit_s, 0
        while True:
            for message in self._messages():
                if "method" in message:
                    self._answer(message)
                elif message.get("id") == self._number:
                    return self._result(message, method)
            read += self._exchange(until)
            if read > MAX_BYTES:
                raise self._failed(f"writes more than {MAX_BYTES:,} bytes")

    def close(self) -> None:
        """End the server and all it started."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._stdout, self._stderr):
            pipe.close()

    def _result(self, message: Mapping[str, Any], method: str) -> Mapping[str, Any]:
        if isinstance(error := message.get("error"), dict):
            raise McpRefusal(_shown(str(error.get("message", error))))
        result = message.get("result")
        if not isinstance(result, dict):
            raise self._failed(f"answers {method} without a result")
        return result

    def _answer(self, message: Mapping[str, Any]) -> None:
        """To what the server asks or tells."""
        if "id" not in message:
            return
        refused = {"error": {"code": NO_METHOD, "message": "this client has no such method"}}
        self._send({"id": message["id"], **({"result": {}} if message["method"] == "ping" else refused)})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._unsent += json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"

    def _messages(self) -> Iterator[Mapping[str, Any]]:
        """Whole lines that have come."""
        *lines, self._unread = self._unread.split(b"\n")
        self._lines.extend(lines)
        while self._lines:
            line = self._lines.popleft()
            if not line.strip():
                continue
            try:
                message = parse(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                raise self._failed(f"writes what is no JSON-RPC: {_shown(line.decode(errors='replace'))!r}")
            yield message

    def _exchange(self, until: float) -> int:
        """Write and read what can be, and wait for it; returns the bytes that came."""
        left = until - time.monotonic()
        pipes = [pipe for pipe in (self._stdout, self._stderr) if not pipe.closed]
        ready, writable = ready_pipes(pipes, [self._stdin] if self._unsent else [], max(0.0, left))
        if left <= 0:
            raise self._failed(f"gave no answer within {self._limit_s:g} s")
        came = 0
        try:
            if writable:
                self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
            for pipe in ready:
                part = os.read(pipe.fileno(), 65_536)
                came += len(part)
                if pipe is self._stdout:
                    self._unread += part
                    if not part:
                        raise self._failed("ended")
                else:
                    self._complaints = (self._complaints + part)[-KEPT:]
                    if not part:
                        pipe.close()
        except BlockingIOError:
            pass
        except OSError:
            raise self._failed("ended") from None
        return came

    def _failed(self, what: str) -> McpError:
        """Ends the server. The error says its last words."""
        with contextlib.suppress(OSError, ValueError):
            self._complaints += os.read(self._stderr.fileno(), KEPT) or b""
        self.close()
        said = _shown(self._complaints.decode(errors="replace").strip()[-SHOWN:])
        return McpError(f"the server {self._name!r} {what}" + (f"; it said: {said}" if said else ""))


def _shown(text: str) -> str:
    return printable(one_line(text))[:SHOWN]
