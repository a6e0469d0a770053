"""How experiments are run, whatever they are."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunOptions:
    """What the user says of a run beside its experiments.

    Attributes:
        resume: Go on with the experiment in the storage path instead of starting it anew.
        trust_checkpoint: Go on also with an experiment that none of this user's runs started.
        verbosity: 0: one line per iteration; 1: Tune's own output and what workers print; 2: debug output.
        address: Ray cluster to join; ``None`` joins the one this machine belongs to, if any, and starts one otherwise.
        num_cpus: CPUs to declare when a cluster is started; ``None``: those of the machine, or what one trial asks for
            if that is more.
        num_gpus: GPUs to declare when a cluster is started.
        object_store_memory: Bytes of the object store when a cluster is started.
        num_nodes: Start a test cluster of that many nodes on this machine.
        dashboard: Start Ray's dashboard and say how to get in; ``None``: on a terminal, where it is installed.
        memory_check: Refuse a run whose processes would not fit into the memory of this machine, where it has to hold
            them.
        runtime_env: Ray runtime environment of the workers.
        started: ``time.monotonic()`` when the command was given, which times are told from.
    """

    resume: bool = False
    trust_checkpoint: bool = False
    verbosity: int = 0
    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    object_store_memory: int | None = None
    num_nodes: int | None = None
    dashboard: bool | None = None
    memory_check: bool = True
    runtime_env: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
