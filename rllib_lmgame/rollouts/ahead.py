"""Iterations that are played while an earlier one is trained on: which may begin, and which come out.

Each update makes one new version of the weights. Guarantees (each has a test):

1. Iterations come out in order and each once, played ahead or not.
2. An iteration begins at most ``max_staleness`` updates before the one that trains on it: none of its tokens is older.
3. What has begun and did not come out can be forgotten at any time; it begins again from the same iteration on.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """What has begun and did not come out, oldest first: an iteration and whatever stands for it each.

    It only decides; who plays is somebody else.
    """

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness
        self._begun: deque[tuple[int, T]] = deque()

    @property
    def begun(self) -> list[T]:
        """What stands for the iterations, in order."""
        return [what for _, what in self._begun]

    def room(self, trained: int) -> range:
        """Iterations that may begin while the iteration ``trained`` is trained on."""
        first = self._begun[-1][0] + 1 if self._begun else trained + 1
        return range(first, trained + self.max_staleness + 1)

    def begin(self, iteration: int, what: T) -> None:
        """``iteration`` begins, the next one of :meth:`room`."""
        if self._begun and iteration != self._begun[-1][0] + 1:
            raise ValueError(f"iteration {iteration} does not follow on {self._begun[-1][0]}")
        self._begun.append((iteration, what))

    def take(self, iteration: int) -> T | None:
        """What stands for ``iteration``, which comes out; ``None`` if it has not begun."""
        if not self._begun:
            return None
        first, what = self._begun[0]
        if first != iteration:
            raise ValueError(f"iteration {first} comes out before iteration {iteration}")
        self._begun.popleft()
        return what

    def forget(self) -> list[T]:
        """Nothing has begun any more; what stood for it."""
        forgotten = self.begun
        self._begun.clear()
        return forgotten

    def oldest(self, version: int, trained: int, iteration: int) -> int:
        """Oldest version of a token of ``iteration``, if ``trained`` is trained on with weights of ``version``."""
        return version + iteration - trained - self.max_staleness
