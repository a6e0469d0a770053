"""Answers SQL queries inside the sandbox: text of a program, started once and fed with one JSON request per line.

``{"database": name, "path": file}`` or ``{"database": name, "data": base64}`` opens one. ``{"database": name, "query":
text, "seconds": s, "rows": n, "bytes": n}`` asks it. Connections only read: the file is opened immutable,
``query_only`` is set, and an authorizer lets through only reading tables and the functions listed here. It imports
nothing of this package.
"""

from __future__ import annotations

import _thread
import base64
import json
import os
import select
import sqlite3
import sys
import time
from typing import Any
from urllib.parse import quote

FUNCTION_NAMES = (
    "abs avg ceil ceiling char coalesce concat count cume_dist date datetime degrees dense_rank exp first_value "
    "floor format glob group_concat hex ifnull iif instr json json_array json_array_length json_each json_extract "
    "json_group_array json_group_object json_object json_quote json_tree json_type json_valid julianday lag "
    "last_value lead length like likelihood likely ln log log10 log2 lower ltrim max min mod nth_value ntile nullif "
    "octet_length percent_rank pi pow power printf quote radians rank replace round row_number rtrim sign sin cos "
    "tan soundex sqrt strftime string_agg substr substring sum time timediff total trim trunc typeof unhex unicode "
    "unixepoch unlikely upper zeroblob -> ->> "
)
FUNCTIONS = frozenset(FUNCTION_NAMES.split())
"""No random numbers (a query must have one answer), nothing that reaches files, extensions or the connection."""

TABLE_FUNCTIONS = ("json_each", "json_tree")
ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 32,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
STEPS_BETWEEN_LOOKS = 1_000
"""Steps of SQLite's machine between two looks at the clock, some 20 microseconds."""


def authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action in ALLOWED or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def open_database(path: str | None, data: bytes | None) -> sqlite3.Connection:
    """A connection that can only read, to a file or to a copy in memory."""
    if path is not None:
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True, isolation_level=None)
    else:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.deserialize(data or b"")
    for pragma in ("query_only = 1", "temp_store = MEMORY", "trusted_schema = 0", "cell_size_check = 1"):
        connection.execute(f"PRAGMA {pragma}")
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    for table in TABLE_FUNCTIONS:  # SQLite makes these tables at their first use, which the authorizer would refuse
        connection.execute(f"SELECT 1 FROM {table}('[]')").fetchall()
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.set_authorizer(authorize)
    return connection


def ask(connection: sqlite3.Connection, request: dict[str, Any]) -> dict[str, Any]:
    """Rows and column names, or an error in one line."""
    deadline = time.process_time() + request["seconds"]
    connection.set_progress_handler(lambda: time.process_time() > deadline, STEPS_BETWEEN_LOOKS)
    cursor = connection.cursor()
    try:
        cursor.execute(request["query"])
        if cursor.description is None:
            return {"error": "only a query that returns rows is allowed"}
        rows = fetch(cursor, request["rows"], request["bytes"], deadline)
        return {"columns": [column[0] for column in cursor.description], "rows": rows}
    except TooMuch as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "the query used too much memory"}
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        text = "the query ran too long and was stopped" if str(error) == "interrupted" else str(error)
        return {"error": text[:500] or type(error).__name__}
    finally:
        cursor.close()


class TooMuch(Exception):
    """A result beyond its limits."""


def fetch(cursor: sqlite3.Cursor, most_rows: int, most_bytes: int, deadline: float) -> list[list[Any]]:
    """All rows, each value as JSON can hold it."""
    rows: list[list[Any]] = []
    size = 0
    for row in cursor:
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        rows.append([plain(value) for value in row])
        if len(rows) > most_rows or size > most_bytes:
            raise TooMuch(f"the result is too large (more than {most_rows} rows or {most_bytes} bytes)")
        if time.process_time() > deadline:
            raise TooMuch("the query ran too long and was stopped")
    return rows


def plain(value: Any) -> Any:
    """Bytes and infinite numbers as one-entry mappings, the rest as it is."""
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, float) and value - value != 0:
        return {"float": repr(value)}
    return value


def end_with_holder() -> None:
    """End this process, even in a query, once nobody holds the other end of its input."""
    holder = select.poll()
    holder.register(0, 0)
    holder.poll()
    os._exit(0)


def main() -> None:
    _thread.start_new_thread(end_with_holder, ())
    connections: dict[str, sqlite3.Connection] = {}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        name = request["database"]
        try:
            if "query" in request:
                reply = ask(connections[name], request)
            else:
                data = base64.b64decode(request["data"]) if "data" in request else None
                connections[name] = open_database(request.get("path"), data)
                reply = {"opened": name}
        except (sqlite3.Error, MemoryError, OSError) as error:
            reply = {"error": str(error)[:500] or type(error).__name__}
        message = json.dumps(reply, separators=(",", ":")).encode() + b"\n"
        while message:
            message = message[os.write(1, message) :]


if __name__ == "__main__":
    main()
