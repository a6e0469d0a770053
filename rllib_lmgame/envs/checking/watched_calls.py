"""Which call into a game is being made, and how many checks are over, as another process can see it: a game that hangs
cannot say so itself.
"""

from __future__ import annotations

import functools
import mmap
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CONSTRUCTOR = "the constructor"
METHODS = ("reset", "step", "observe", "expert_action", "expert_thought", "render", "close")
NAMES = ("", CONSTRUCTOR, *(f"{method}()" for method in METHODS))
_LAYOUT = struct.Struct("=dB")
_CHECKS = struct.Struct("=BB")


class CallBoard:
    """The call in progress, in memory that is shared through a file.

    Args:
        descriptor: A file of at least :attr:`SIZE` bytes.
    """

    SIZE = mmap.PAGESIZE

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, self.SIZE)
        self._depth = 0

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Around a call; of calls within calls the outermost counts."""
        self._depth += 1
        if self._depth == 1:
            _LAYOUT.pack_into(self._memory, 0, time.monotonic(), NAMES.index(name))
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                _LAYOUT.pack_into(self._memory, 0, time.monotonic(), 0)

    def now(self) -> tuple[str, float]:
        """The call being made (empty: none), and since when (``time.monotonic()``)."""
        since, index = _LAYOUT.unpack_from(self._memory, 0)
        return NAMES[index] if index < len(NAMES) else "", since

    def tell(self, over: int, of: int) -> None:
        """So many checks are over."""
        _CHECKS.pack_into(self._memory, _LAYOUT.size, over, of)

    def told(self) -> tuple[int, int]:
        """How many checks are over, and how many there are; 0 of 0 before the first."""
        over, of = _CHECKS.unpack_from(self._memory, _LAYOUT.size)
        return over, of

    def watch(self, env: Any) -> Any:
        """``env`` with its methods announced."""
        for method in METHODS:
            call = getattr(env, method, None)
            if callable(call):
                setattr(env, method, self._announced(f"{method}()", call))
        return env

    def _announced(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def announced(*args: Any, **kwargs: Any) -> Any:
            with self.calling(name):
                return call(*args, **kwargs)

        return announced
