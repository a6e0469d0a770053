"""SQL queries of a player, answered by a confined worker process.

SQLite checks its progress handler only while a query runs, so its own limits cannot bound time or memory. A sandboxed
worker, started again if it was killed, opens databases read-only and immutable, or holds a copy in memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.base.step_timer import ready_pipes
from rllib_lmgame.sandbox.limits import MEBIBYTE, Limits, SandboxError
from rllib_lmgame.sandbox.process import CHUNK, Process
from rllib_lmgame.sandbox.programs import sandbox_mode

WORKER_LIMITS = Limits(cpu_s=10**9, memory_bytes=1024 * MEBIBYTE, file_bytes=MEBIBYTE, disk_bytes=MEBIBYTE, threads=4)
START_S = 20.0
WALL_FACTOR = 3.0
"""Wall-clock time for each second of processor time: a busy machine must not fail a right query."""
KILL_AFTER_S = 1.0
"""Seconds beyond that until the worker is killed: SQLite stops a running query, not one it prepares."""
STOPPED = "the query ran too long or used too much memory and was stopped"
DIGITS = 9
"""Significant digits that are compared: the order of a sum changes the last ones."""


@dataclass(frozen=True)
class QueryLimits:
    """Bounds of one query: seconds of processor time, rows and bytes of its result."""

    seconds: float = 2.0
    rows: int = 10_000
    bytes: int = MEBIBYTE


@dataclass(frozen=True)
class Database:
    """A database to ask: an SQLite file, or the bytes of one (:meth:`sqlite3.Connection.serialize`)."""

    name: str
    path: str | None = None
    data: bytes | None = None

    @staticmethod
    def of_file(path: str | Path) -> Database:
        resolved = str(Path(path).resolve())
        return Database(resolved, path=resolved)

    @staticmethod
    def of_bytes(data: bytes) -> Database:
        return Database(hashlib.blake2b(data, digest_size=12).hexdigest(), data=data)


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query (tuples of ``None``, numbers, texts and ``bytes``), or an ``error`` in one line."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    error: str = ""

    @property
    def size(self) -> int:
        """Bytes of its rows, as :class:`QueryLimits` counts them."""
        return sum(len(value) if isinstance(value, str | bytes) else 8 for row in self.rows for value in row)


def same_rows(one: QueryResult, other: QueryResult) -> bool:
    """Whether two results hold the same rows equally often, in any order, numbers to nine significant digits."""
    return not one.error and not other.error and _bag(one) == _bag(other)


def _bag(result: QueryResult) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple(float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for value in row)
        for row in result.rows
    )


class SqlWorker:
    """A confined process that answers queries in turn, from any thread.

    ``root`` is the directory whose databases it may open as files; with ``None`` it only gets copies. ``opened`` are
    names of databases that need not be opened any more.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._process: Process | None = None
        self.opened: set[str] = set()
        self._buffer = b""

    def query(self, database: Database, sql: str, limits: QueryLimits | None = None) -> QueryResult:
        """Ask ``database``; never raises for ``sql``. Raises: SandboxError: the worker does not start, or open it."""
        limits = limits or QueryLimits()
        request = {
            "database": database.name,
            "query": sql,
            "seconds": limits.seconds,
            "rows": limits.rows,
            "bytes": limits.bytes,
        }
        with self._lock:
            self._open(database)
            reply = self._exchange(request, WALL_FACTOR * limits.seconds + KILL_AFTER_S)
        if reply is None:
            return QueryResult(error=STOPPED)
        if "error" in reply:
            return QueryResult(error=reply["error"])
        return QueryResult(tuple(reply["columns"]), tuple(tuple(map(_value, row)) for row in reply["rows"]))

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _open(self, database: Database) -> None:
        if self._process is None or self._process.popen.poll() is not None:
            self._stop()
            paths = [self._root] if self._root else []
            worker = Path(__file__).with_name("worker.py").read_text(encoding="utf-8")
            self._process = Process(worker, b"", WORKER_LIMITS, sandbox_mode(), read_paths=paths, server=True)
            for pipe in (self._process.popen.stdin, self._process.popen.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
        if database.name not in self.opened:
            place: dict[str, Any] = {"path": database.path}
            if not database.path:
                place = {"data": base64.b64encode(database.data or b"").decode()}
            process = self._process
            reply = self._exchange({"database": database.name, **place}, START_S)
            if reply is None:
                process.check_started()
            if reply is None or "error" in reply:
                raise SandboxError(
                    f"cannot open the database {database.name!r}: {(reply or {}).get('error', 'the worker ended')}"
                )
            self.opened.add(database.name)

    def _exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send one request and wait for its reply; ``None`` if the worker had to be killed or died."""
        process, deadline = self._process, time.monotonic() + seconds
        assert process is not None
        process.pending = memoryview(bytes(process.pending) + json.dumps(request).encode() + b"\n")
        stdin, stdout = process.popen.stdin, process.popen.stdout
        assert stdin is not None and stdout is not None
        try:
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                readable, writable = ready_pipes([stdout], [stdin] if process.pending else [], max(left, 0))
                if writable:
                    process.pending = process.pending[os.write(stdin.fileno(), process.pending[:CHUNK]) :]
                if readable:
                    data = os.read(stdout.fileno(), CHUNK)
                    if not data:
                        raise BrokenPipeError
                    self._buffer += data
                elif not writable and left <= 0:
                    raise TimeoutError
        except OSError:
            self._stop()
            return None
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process, self._buffer = None, b""
        self.opened.clear()


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["blob"]) if "blob" in value else float(value["float"])
    return value
