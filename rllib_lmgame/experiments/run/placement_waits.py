"""Says what a run waits for while no trial can be placed, and why a trial starts again."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from ray.tune import Callback

from rllib_lmgame.experiments.checks.resources import ResourceRequest, shortfall
from rllib_lmgame.experiments.results.outcome import cause
from rllib_lmgame.telemetry.trial_names import names_of

SAY_EVERY_S = 30.0
"""Between two lines about the same wait."""


class WaitingCallback(Callback):
    """Prints a line every half minute while trials wait for resources; a joined cluster may still grow.

    ``request`` is that of one trial, ``keys`` the settings that ask for it.
    """

    def __init__(self, request: ResourceRequest, keys: str, stream: TextIO | None = None) -> None:
        self._request = request
        self._keys = keys
        self._stream = stream
        self._next = time.monotonic() + SAY_EVERY_S

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        text, start = cause(trial).splitlines()[-1], "begins anew: it has no checkpoint yet"
        if trial.checkpoint is not None:
            start = f"goes on from {trial.checkpoint.path}"
        failures = f"{trial.num_failures} of max_failures: {trial.max_failures}"
        print(
            f"trial {names_of(trials).get(trial.trial_id, trial.trial_id)} failed ({failures}) and {start}: {text}",
            file=self._stream or sys.stderr,
        )

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        now = time.monotonic()
        if any(trial.status == "RUNNING" for trial in trials):
            self._next = now + SAY_EVERY_S
        elif now >= self._next and any(trial.status == "PENDING" for trial in trials):
            self._next = now + SAY_EVERY_S
            text = _look(self._request, self._keys)
            if text is not None:
                print(text, file=self._stream or sys.stderr, flush=True)


def _look(request: ResourceRequest, keys: str) -> str | None:
    import ray

    groups = ray.util.placement_group_table().values()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return waiting_line(request, keys, nodes, ray.available_resources(), [group["state"] for group in groups])


def waiting_line(
    request: ResourceRequest,
    keys: str,
    nodes: Sequence[Mapping[str, float]],
    free: Mapping[str, float],
    states: Sequence[str],
) -> str | None:
    """What to say of a wait; ``None`` if a trial has its resources and its processes are starting.

    ``nodes`` are all resources of each node, ``free`` is summed over nodes, ``states`` are the placement groups'.
    """
    asked = f" ({keys})" if keys else ""
    missing = shortfall(request, nodes)
    if missing is not None:
        return f"waiting for nodes: a trial {missing}{asked}"
    if "PENDING" not in states:
        return None
    kinds = request.total
    amounts = ", ".join(f"{amount:g} {kind} (free {free.get(kind, 0):g})" for kind, amount in kinds.items())
    return f"waiting for resources that are in use: a trial asks for {amounts}{asked}"
