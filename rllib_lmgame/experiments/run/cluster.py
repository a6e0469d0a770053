"""The Ray cluster that experiments run on: the one the options name, the one this machine belongs to, or a new one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rllib_lmgame.algorithms.cluster.footprint import machine_mib
from rllib_lmgame.algorithms.cluster.ray_cluster import (
    join,
    join_existing,
    shut_down,
    start_local,
)
from rllib_lmgame.algorithms.cluster.trials import tell_trials_at_once
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.experiments.checks.resources import (
    check_memory,
    check_placeable,
    cpus_to_declare,
    node_here,
    trials_at_once,
)
from rllib_lmgame.experiments.run.dashboard import dashboard_line, include_dashboard, metrics_line, wants_dashboard
from rllib_lmgame.experiments.run.options import RunOptions
from rllib_lmgame.policies.model.carried_files import remove_unused


def quieten_ray(verbosity: int) -> int:
    """Set what Ray's loggers print on the driver; returns the level."""
    import ray.rllib  # noqa: F401  (sets its own level when it is imported)

    level = (logging.ERROR, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.getLogger("ray").setLevel(level)
    for name in ("ray.rllib", "ray._private"):
        logging.getLogger(name).setLevel(level)
    # What Tune calls errors here (a failed or stopped trial) is told at the end, with the cause.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL if verbosity == 0 else level)
    return level


@contextmanager
def running_cluster(checked: Sequence[CheckedExperiment], options: RunOptions) -> Iterator[None]:
    """A Ray cluster to run in, shut down afterwards if it was started here."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "1" if options.verbosity else "0")
    common: dict[str, Any] = {
        "log_to_driver": options.verbosity > 0,
        "logging_level": quieten_ray(options.verbosity),
        "runtime_env": options.runtime_env or None,
    }
    try:
        joined = options.address is None and join_existing(**common)
        if not joined and _start_or_join(checked, options, common):
            nodes = [node["Resources"] for node in ray.nodes()]
            check_placeable(checked, nodes)
            if options.memory_check:
                check_memory(checked, machine_mib())
            tell_trials_at_once(max((trials_at_once(each, nodes[0]) for each in checked), default=1))
        if wants_dashboard(options.dashboard):
            print(dashboard_line(ray._private.worker.get_dashboard_url()), flush=True)
            if line := metrics_line(ray.nodes()):
                print(line, flush=True)
        yield
    finally:
        shut_down()
        remove_unused()


def join_or_start(address: str | None, verbosity: int) -> None:
    """Connect to the cluster at ``address``, to the one this machine belongs to, or to a new local one."""
    common = {"log_to_driver": verbosity > 0, "logging_level": quieten_ray(verbosity)}
    options = RunOptions(address=address, num_cpus=max(8, os.cpu_count() or 1), dashboard=False)
    if address or not join_existing(**common):
        _start_or_join([], options, common)


def _start_or_join(checked: Sequence[CheckedExperiment], options: RunOptions, common: dict[str, Any]) -> bool:
    """Connect to the cluster the options name, or to a new one; whether it was started here."""
    if options.address and options.address != "local":
        join(options.address, f"--ray-address {options.address}", **common)
        return False
    num_cpus = cpus_to_declare(checked) if options.num_cpus is None else options.num_cpus
    # Ray would take its time to start before it is refused.
    check_placeable(checked, [node_here(num_cpus, options.num_gpus)])
    start_local(
        num_cpus=num_cpus,
        num_gpus=options.num_gpus,
        object_store_memory=options.object_store_memory,
        include_dashboard=include_dashboard(options.dashboard),
        **common,
    )
    return True
