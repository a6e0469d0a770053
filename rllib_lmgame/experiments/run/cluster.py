"""The Ray cluster that experiments run on: the one the options name, the one this machine belongs to, or a new one."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.algorithms.cluster.footprint import machine_mib
from rllib_lmgame.algorithms.cluster.ray_cluster import join, join_existing, shut_down, start_local
from rllib_lmgame.algorithms.cluster.threads import tell_trials_at_once
from rllib_lmgame.experiments.checks import resources
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.experiments.checks.machine import UsableGpus


def quieten_ray(verbosity: int) -> int:
    """Set what Ray's loggers print on the driver; returns the level."""
    import ray.rllib  # noqa: F401  (sets its own level when it is imported)

    level = (logging.ERROR, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    for name in ("ray", "ray.rllib", "ray._private"):
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
    common: dict[str, Any] = {"log_to_driver": options.verbosity > 0, "logging_level": quieten_ray(options.verbosity)}
    if variables := env_vars(checked):
        common["runtime_env"] = {"env_vars": variables}
    try:
        joined = options.ray_address is None and join_existing(**common)
        if not joined and _start_or_join(checked, options, common):
            if options.memory_check:
                resources.check_memory(checked, machine_mib())
            node = ray.nodes()[0]["Resources"]
            tell_trials_at_once(max((resources.trials_at_once(each, node) for each in checked), default=1))
        if sys.stdout.isatty() if options.dashboard is None else options.dashboard:
            print(*dashboard_lines(ray._private.worker.get_dashboard_url(), ray.nodes()), sep="\n", flush=True)
        yield
    finally:
        shut_down()


def env_vars(checked: Sequence[CheckedExperiment]) -> dict[str, str]:
    """What the experiments of a file set for all processes. Raises: ConfigError: they differ; there is one cluster."""
    found: dict[str, str] = {}
    for each in checked:
        for name, value in each.spec.options.env_vars.items():
            if found.setdefault(name, str(value)) != str(value):
                say = f"is {value} here and {found[name]} in another experiment of this file; run them one by one"
                raise each.spec.source.error(f"env_vars.{name}", say)
    return found


def join_or_start(address: str | None, verbosity: int) -> None:
    """Connect to the cluster at ``address``, to the one this machine belongs to, or to a new local one."""
    common = {"log_to_driver": verbosity > 0, "logging_level": quieten_ray(verbosity)}
    options = RunOptions(ray_address=address, num_cpus=max(8, os.cpu_count() or 1), dashboard=False)
    if address or not join_existing(**common):
        _start_or_join([], options, common)


def _start_or_join(checked: Sequence[CheckedExperiment], options: RunOptions, common: dict[str, Any]) -> bool:
    """Connect to the cluster the options name, or to a new one; whether it was started here."""
    if options.ray_address and options.ray_address != "local":
        join(options.ray_address, f"--ray-address {options.ray_address}", **common)
        return False
    num_cpus = resources.cpus_to_declare(checked) if options.num_cpus is None else options.num_cpus
    watched = None if sys.stdout.isatty() else False  # With None Ray goes on without a dashboard that does not start.
    # Ray would take its time to start before it is refused.
    resources.check_placeable(checked, resources.node_here(num_cpus, options.num_gpus))
    if options.memory_check and any(map(resources.asked_by, checked)):
        resources.check_fits(checked, max((card.memory for card in UsableGpus.look().cards), default=float("inf")))
    start_local(
        num_cpus=num_cpus,
        num_gpus=options.num_gpus,
        object_store_memory=options.object_store_memory,
        include_dashboard=watched if options.dashboard is None else options.dashboard,
        **common,
    )
    return True


@dataclass(frozen=True)
class RunOptions:
    """What the user says of a run beside its experiments.

    Attributes:
        trust_checkpoint: Resume also an experiment that others can have written.
        verbosity: 0: one line per iteration; 1: Tune's own output and what workers print; 2: debug output.
        ray_address: Ray cluster to join; ``None``: this machine's, else a new one.
        num_cpus, num_gpus, object_store_memory: To declare in a new cluster (memory in bytes);
            the machine's by default, or a trial's.
        dashboard: Start Ray's dashboard; ``None``: on a terminal.
        memory_check: Refuse a run that would not fit into the memory of this machine alone.
        started: ``time.monotonic()`` when the command was given.
    """

    resume: bool = False
    trust_checkpoint: bool = False
    verbosity: int = 0
    ray_address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    object_store_memory: int | None = None
    dashboard: bool | None = None
    memory_check: bool = True
    started: float = field(default_factory=time.monotonic)


def dashboard_lines(url: str | None, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where Ray's dashboard is (host and port; empty without one), and the Prometheus metrics of ``ray.nodes()``."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    token = " (it asks for a token, which this prints: ray get-auth-token)" if is_token_auth_enabled() else ""
    lines = [f"Ray dashboard: http://{url}{token}" if url else "Ray dashboard: the cluster runs without it"]
    there = [(node.get("NodeManagerAddress"), node.get("MetricsExportPort")) for node in nodes if node.get("Alive")]
    places = [f"http://{host}:{port}/metrics" for host, port in there if isinstance(port, int) and port > 0]
    return lines + [f"Metrics for Prometheus: {', '.join(places)}"] * bool(places)
