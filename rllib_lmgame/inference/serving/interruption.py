"""A stop request that every process of a run sees, so that unbounded waits end.

The driver that gets the signal (``experiments/run/callbacks.py``) puts a mark into the key-value store of Ray's head; a
process that waits looks for it. What can end well in a moment gets that moment.
"""

from __future__ import annotations

import time

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
            self._seen = now if _marked() else None
        return self._seen is not None and now - self._seen >= GRACE_S

    def check(self, waiting_for: str) -> None:
        """Raise :class:`InterruptedWaitError` if the wait for ``waiting_for`` has to end."""
        if self.overdue():
            raise InterruptedWaitError(f"stopped while it waited for {waiting_for}")


def request() -> None:
    """Tell every process of this job that it is to stop; called by the driver."""
    import ray
    from ray.experimental.internal_kv import _internal_kv_put

    if ray.is_initialized():
        _internal_kv_put(_key(), b"1", namespace=_NAMESPACE)


def withdraw() -> None:
    """Take the wish back: the next run of this job is not the one that was to stop."""
    import ray
    from ray.experimental.internal_kv import _internal_kv_del

    if ray.is_initialized():
        _internal_kv_del(_key(), namespace=_NAMESPACE)


def _marked() -> bool:
    import ray
    from ray.experimental.internal_kv import _internal_kv_get

    return ray.is_initialized() and _internal_kv_get(_key(), namespace=_NAMESPACE) is not None


def _key() -> bytes:
    import ray

    return b"interrupted-" + str(ray.get_runtime_context().get_job_id()).encode()
