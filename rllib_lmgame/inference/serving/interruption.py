"""A stop request that every process of a run sees, so that unbounded waits end.

The driver that gets the signal (``experiments/run/callbacks.py``) puts a mark into the key-value store of Ray's head; a
process that waits looks for it. What can end well in a moment gets that moment.
"""

from __future__ import annotations

import time
from typing import Any

GRACE_S = 10.0
"""A wait that was already on when the wish came goes on for that long."""

LOOK_EVERY_S = 1.0
_NAMESPACE = b"lmgame"


class InterruptedWaitError(RuntimeError):
    """A wait was given up since the run is to stop."""


class StopRequest:
    """Looks for the mark; one object per process and job."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._seen: float | None = None

    def overdue(self) -> bool:
        """Whether the wish is older than :data:`GRACE_S`, as far as this process knows."""
        now = time.monotonic()
        if self._seen is None and now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._seen = now if _asked("get") is not None else None
        return self._seen is not None and now - self._seen >= GRACE_S

    def check(self, waiting_for: str) -> None:
        """Raise :class:`InterruptedWaitError` if the wait for ``waiting_for`` has to end."""
        if self.overdue():
            raise InterruptedWaitError(f"stopped while it waited for {waiting_for}")


def request() -> None:
    """Tell every process of this job that it is to stop; called by the driver."""
    _asked("put", b"1")


def withdraw() -> None:
    """Take the wish back: the next run of this job is not the one that was to stop."""
    _asked("del")


def _asked(what: str, *value: bytes) -> Any:
    """What Ray's store answers about this job's mark; ``None`` where no cluster is."""
    import ray
    from ray.experimental import internal_kv

    if not ray.is_initialized():
        return None
    key = b"interrupted-" + str(ray.get_runtime_context().get_job_id()).encode()
    return getattr(internal_kv, f"_internal_kv_{what}")(key, *value, namespace=_NAMESPACE)
