"""An event loop in a daemon thread: connections live on in it between two calls of a game."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def submitted(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run ``coroutine`` in the loop of this process, which starts when it is first needed."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, daemon=True, name="game-servers").start()
        return asyncio.run_coroutine_threadsafe(coroutine, _loop)


def waited_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """What comes of ``coroutine`` in that loop."""
    return submitted(coroutine).result()


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
