"""RLlib's env runners as :func:`~rllib_lmgame.rollouts.sources.play_all` sees them."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from operator import methodcaller

from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rllib_lmgame.inference.serving.interruption import StopRequest
from rllib_lmgame.rollouts.plans import EpisodePlan, deal_with_spares, split_plans, with_spares
from rllib_lmgame.rollouts.records import PlayResult, PlaySettings
from rllib_lmgame.rollouts.sources import RolloutError

POLL_S = 0.5
"""Between two looks for an env runner that is started again."""


class RunnerGroup:
    """Deals plans to healthy remote runners, or to the local one (:class:`~rllib_lmgame.rollouts.sources.Runners`).

    ``timeout_s`` limits the wait for answers, and for a runner where none is left; ``heal`` restarts what died, runners
    only if ``restarts``.
    """

    def __init__(
        self,
        group: EnvRunnerGroup,
        timeout_s: float | None,
        heal: Callable[[EnvRunnerGroup], None],
        restarts: bool = True,
    ) -> None:
        self._group = group
        self._timeout_s = timeout_s
        self._heal = heal
        self._restarts = restarts

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        """Play ``plans``; of those whose runner died or gave no answer in time nothing comes back."""
        result = PlayResult()
        if not self._group.num_remote_env_runners():
            result.extend(self._group.local_env_runner.play(plans, settings))
            return result
        healthy = self._group.healthy_worker_ids()
        split = deal_with_spares if with_spares(plans) else split_plans
        shares = [share for share in split(plans, len(healthy)) if share] if healthy else []
        calls = [
            methodcaller("play", share, _with_share_of_log(settings, number, len(shares)))
            for number, share in enumerate(shares)
        ]
        if calls:
            ids = healthy[: len(calls)]
            parts = self._group.foreach_env_runner(
                calls, local_env_runner=False, remote_worker_ids=ids, timeout_seconds=self._timeout_s
            )
            for part in parts:
                result.extend(part)
        return result

    def heal(self) -> None:
        """Bring back engines and runners that died; if no runner is left, wait until one is up again.

        Raises: RolloutError: none came up in time; InterruptedWaitError: the run is to stop.
        """
        self._heal(self._group)
        deadline = time.monotonic() + (math.inf if self._timeout_s is None else self._timeout_s)
        stop = StopRequest()
        while self._restarts and self._group.num_remote_env_runners() and not self._group.healthy_worker_ids():
            if time.monotonic() >= deadline:
                raise RolloutError(f"no env runner came up again within sample_timeout_s={self._timeout_s:g}")
            stop.check("an env runner that is started again")
            time.sleep(POLL_S)
            self._heal(self._group)


def _with_share_of_log(settings: PlaySettings, number: int, runners: int) -> PlaySettings:
    """What one of several runners writes of the episodes that all together write."""
    if settings.log_most is None:
        return settings
    most = settings.log_most * (number + 1) // runners - settings.log_most * number // runners
    return dataclasses.replace(settings, log_most=most)
