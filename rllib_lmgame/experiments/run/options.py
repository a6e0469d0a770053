"""How experiments are run, whatever they are."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunOptions:
    """What the user says of a run beside its experiments.

    Attributes:
        trust_checkpoint: Resume also an experiment that others can have written.
        verbosity: 0: one line per iteration; 1: Tune's own output and what workers print; 2: debug output.
        address: Ray cluster to join; ``None``: this machine's, else a new one.
        num_cpus, num_gpus, object_store_memory: To declare in a new cluster (memory in bytes);
            the machine's by default, or a trial's.
        dashboard: Start Ray's dashboard; ``None``: on a terminal, where it is installed.
        memory_check: Refuse a run that would not fit into the memory of this machine alone.
        started: ``time.monotonic()`` when the command was given.
    """

    resume: bool = False
    trust_checkpoint: bool = False
    verbosity: int = 0
    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    object_store_memory: int | None = None
    dashboard: bool | None = None
    memory_check: bool = True
    runtime_env: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
