"""Which engine a request goes to: a policy without I/O."""

from __future__ import annotations

from collections import OrderedDict


class AffinityRouter:
    """Keeps a game on the engine that holds its prefix; puts new games where least is going on.

    1. A key stays on its engine as long as that engine is up.
    2. No request goes to an engine that is down while another is up.
    3. A new key goes to the engine with the fewest requests in flight, then with the fewest keys.

    Args:
        num_engines: Engines are numbered from 0.
        max_keys: Keys remembered; the one not used for longest is forgotten first.
    """

    def __init__(self, num_engines: int, max_keys: int = 16_384) -> None:
        if num_engines < 1:
            raise ValueError("at least one engine is needed")
        self._up = [True] * num_engines
        self._in_flight = [0] * num_engines
        self._num_keys = [0] * num_engines
        self._engine_of: OrderedDict[str, int] = OrderedDict()
        self._max_keys = max_keys

    def route(self, key: str | None) -> int | None:
        """Engine for a request of ``key`` (``None``: of no game in particular); ``None`` if every engine is down."""
        if key is not None and (engine := self._engine_of.get(key)) is not None:
            if self._up[engine]:
                self._engine_of.move_to_end(key)
                return engine
            self.forget(key)
        candidates = [e for e, up in enumerate(self._up) if up]
        if not candidates:
            return None
        engine = min(candidates, key=lambda e: (self._in_flight[e], self._num_keys[e], e))
        if key is not None:
            self._engine_of[key] = engine
            self._num_keys[engine] += 1
            if len(self._engine_of) > self._max_keys:
                self.forget(next(iter(self._engine_of)))
        return engine

    def started(self, engine: int) -> None:
        """A request was sent to ``engine``."""
        self._in_flight[engine] += 1

    def finished(self, engine: int) -> None:
        """A request sent to ``engine`` was answered, or given up."""
        self._in_flight[engine] -= 1

    def mark(self, engine: int, up: bool) -> None:
        """Say whether ``engine`` answers."""
        self._up[engine] = up

    def is_up(self, engine: int) -> bool:
        """What :meth:`mark` said last."""
        return self._up[engine]

    def forget(self, key: str) -> None:
        """The game of ``key`` is over."""
        engine = self._engine_of.pop(key, None)
        if engine is not None:
            self._num_keys[engine] -= 1
