"""How many trials may run at once on a machine that does nothing else: the command tells its trials."""

from __future__ import annotations

from rllib_lmgame.telemetry.progress import phase_of, tell_phase


def tell_trials_at_once(count: int) -> None:
    """Tell the trials of this program; for a cluster that was started for it and nothing else."""
    tell_phase(_key(), str(count))


def trials_at_once() -> int | None:
    """Trials that may run at once on this machine; ``None``: nobody knows, or there are other machines."""
    import ray

    told = phase_of(_key()) if ray.is_initialized() else None
    return int(told) if told is not None and sum(node["Alive"] for node in ray.nodes()) == 1 else None


def _key() -> str:
    import ray

    return f"{ray.get_runtime_context().get_job_id()}/trials"
