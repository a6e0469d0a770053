"""Makes a trial whose process Ray killed for lack of memory fail like any other; Tune would end the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def memory_deaths_are_failures() -> Iterator[None]:
    """Let Tune take such a death as that of an actor, inside."""
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import OutOfMemoryError, RayActorError

    plain = RayActorManager._actor_task_failed

    def failed(self: Any, tracked_actor_task: Any, exception: Exception) -> None:
        known = RayActorError(error_msg=str(exception)) if isinstance(exception, OutOfMemoryError) else exception
        plain(self, tracked_actor_task, known)

    RayActorManager._actor_task_failed = failed
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = plain
