"""SQL workers of one process: as many at work as the machine's limit lets in, a few kept idle."""

from __future__ import annotations

import atexit
import os
import threading

from rllib_lmgame.sandbox.concurrency_limit import machine_limit
from rllib_lmgame.sandbox.queries.database import Database, QueryLimits, QueryResult, SqlWorker

MAX_IDLE = 4
"""Idle workers kept, some 15 MiB each."""


class SqlPool:
    """Answers queries; safe to use from several threads. ``root`` as of :class:`SqlWorker`."""

    def __init__(self, root: str | None = None) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._idle: list[SqlWorker] = []

    def query(self, database: Database, sql: str, limits: QueryLimits | None = None) -> QueryResult:
        """Run a query as :meth:`SqlWorker.query`. Raises: SandboxBusyError: the machine was busy too long."""
        with machine_limit().admitted():
            worker = self._take(database)
            try:
                return worker.query(database, sql, limits)
            finally:
                self._give_back(worker)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _take(self, database: Database) -> SqlWorker:
        """An idle worker, best one that has opened the database; else a new one."""
        with self._lock:
            if not self._idle:
                return SqlWorker(self._root)
            best = next((worker for worker in self._idle if database.name in worker.opened), self._idle[-1])
            self._idle.remove(best)
            return best

    def _give_back(self, worker: SqlWorker) -> None:
        with self._lock:
            kept = len(self._idle) < MAX_IDLE
            if kept:
                self._idle.append(worker)
        if not kept:
            worker.close()


_pools: dict[tuple[int, str | None], SqlPool] = {}
_pools_lock = threading.Lock()


def sql_pool(root: str | None = None) -> SqlPool:
    """The pool of this process for the databases below ``root``."""
    key = (os.getpid(), root)
    with _pools_lock:
        if key not in _pools:
            _pools[key] = SqlPool(root)
            atexit.register(_pools[key].close)
        return _pools[key]
