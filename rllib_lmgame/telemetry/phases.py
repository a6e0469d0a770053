"""What a trial is doing just now, by way of Ray's key-value store; shown while there is no result yet."""

from __future__ import annotations

from contextlib import suppress

WHY_DROPPED = "/dropped"
"""Behind a trial's id: where it says why episodes were dropped."""
CHOSEN = "/chosen"
"""Likewise, where it says what was left to it to choose."""

_NAMESPACE = b"rllib_lmgame_phase"


def tell_phase(trial_id: str, phase: str) -> None:
    """Say what the trial begins to do; nothing happens where no cluster answers."""
    from ray.exceptions import RayError
    from ray.experimental import internal_kv

    if not internal_kv._internal_kv_initialized():
        return
    with suppress(RayError, OSError):  # Nothing fails because it could not be watched.
        internal_kv._internal_kv_put(trial_id.encode(), phase.encode(), overwrite=True, namespace=_NAMESPACE)


def phase_of(trial_id: str) -> str | None:
    """What the trial said last; ``None`` for nothing, or if nothing can be heard."""
    from ray.exceptions import RayError
    from ray.experimental import internal_kv

    if not internal_kv._internal_kv_initialized():
        return None
    try:
        told = internal_kv._internal_kv_get(trial_id.encode(), namespace=_NAMESPACE)
    except (RayError, OSError):
        return None
    return None if told is None else told.decode()
