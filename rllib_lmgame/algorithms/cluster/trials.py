"""How many trials may run at once on a machine that does nothing else: the command tells its trials, by Ray's store."""

from __future__ import annotations

from contextlib import suppress

_NAMESPACE = b"rllib_lmgame_trials_at_once"


def tell_trials_at_once(count: int) -> None:
    """Tell the trials of this program; for a cluster that was started for it and nothing else."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(_job(), str(count).encode(), overwrite=True, namespace=_NAMESPACE)


def trials_at_once() -> int | None:
    """Trials that may run at once on this machine; ``None``: nobody knows, or there are other machines."""
    import ray
    from ray.exceptions import RayError
    from ray.experimental import internal_kv

    if not ray.is_initialized() or not internal_kv._internal_kv_initialized():
        return None
    with suppress(RayError, OSError):
        told = internal_kv._internal_kv_get(_job(), namespace=_NAMESPACE)
        if told is not None and sum(node["Alive"] for node in ray.nodes()) == 1:
            return max(1, int(told))
    return None


def _job() -> bytes:
    import ray

    return str(ray.get_runtime_context().get_job_id()).encode()
