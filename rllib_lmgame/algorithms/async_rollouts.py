"""Asynchronous rollouts: threads of the driver play the next iterations while the driver updates.

Games of up to ``max_staleness`` + 1 iterations are in play side by side, and replies go on under new weights (see
:mod:`rllib_lmgame.inference.engines.threaded`), so that a long episode has the time of ``max_staleness`` updates before
it is waited for. Each update makes one new version of the weights. Guarantees (each has a test):

1. Iterations are trained on in order and once, played ahead or not, each on all episodes of its own plans.
2. An iteration begins at most ``max_staleness`` updates before the one that trains on it: none of its tokens is older.
3. An iteration that was played with other values of schedules than its own is played again.
4. A league's opponents change only while nothing is played, and a due snapshot is taken before its iteration begins.
   At most one iteration of a league is played ahead.
5. A checkpoint has no iterations that were played ahead: a resumed run plays the same levels again, so each level of a
   list is trained on once. Items of lists are dealt in the order of iterations.
6. An error while playing is raised when the iteration is due.
7. Iterations are in play one after the other where one depends on what another has played (leagues, schedules that
   follow results, refills from lists).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from rllib_lmgame.rollouts.sources import RolloutError
from rllib_lmgame.telemetry.metrics import ASYNC_ROLLOUT_NAMES

if TYPE_CHECKING:
    from rllib_lmgame.config.run import RunConfig

ASYNC_ROLLOUTS = "async_rollouts"


class Played(NamedTuple):
    """A played iteration (``.ppo.Selected``): items of lists dealt until then, and times in seconds."""

    selected: Any
    items: Mapping[str, int]
    began: float
    ended: float


class Job(NamedTuple):
    """An iteration that is played or waits, with the settings that it is played by."""

    iteration: int
    by: Any
    present: RunConfig
    oldest: int
    future: Future[Played]


class AsyncRollouts:
    """Plays iterations of an ``LMGamePPO`` in threads, as many at once as may be.

    ``items`` are the items of lists that were dealt for iterations that were trained on; ``begun`` are the iterations
    that have begun and are not trained on yet, in order. ``numbers`` are ``async_rollouts/<name>`` of the last one.
    """

    def __init__(self, algorithm: Any, max_staleness: int) -> None:
        self._algorithm = algorithm
        self._max_staleness = max_staleness
        self.begun: deque[Job] = deque()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._overlaps = algorithm.overlaps
        self._closed = False
        self._ended: float | None = None
        self._awaited: Job | None = None
        self._taken: int | None = None
        self.numbers = dict.fromkeys(ASYNC_ROLLOUT_NAMES, 0.0)
        self.items: Mapping[str, int] = algorithm.items_dealt()
        for _ in range(1 + max_staleness * self._overlaps):
            # Daemons, since a game may take an hour and the process must be able to end.
            threading.Thread(target=self._run, name="lmgame-ahead", daemon=True).start()

    def take(self, iteration: int, present: RunConfig) -> Any:
        """The played ``iteration``, which begins now if it has not; waits for it.

        If it is taken again, since it or its update failed, it is played again. Raises: RolloutError: see
        :meth:`check_open`; errors while playing.
        """
        self.check_open()
        if iteration == self._taken:
            self.forget()
            self._algorithm.unlog(iteration)
        self._taken = iteration
        job = self.begun.popleft() if self.begun else None
        again = job is not None and job.by != self._algorithm.played_by(present)
        if job is not None and again:
            self.forget(job)
            self._algorithm.unlog(iteration)
        if job is None or again:
            job = self._job(iteration, present)
        began, self._awaited = time.perf_counter(), job
        if self._overlaps:
            self.begin()
        played = job.future.result()
        self.items, self._awaited = played.items, None
        idle = 0.0 if self._ended is None else max(0.0, played.began - self._ended)
        numbers = (idle, time.perf_counter() - began, float(again))
        self.numbers = dict(zip(ASYNC_ROLLOUT_NAMES, numbers, strict=True))
        self._ended = max(played.ended, self._ended or played.ended)  # A long iteration before it may end later.
        return played.selected

    def begin(self) -> None:
        """Begin the iterations that may be played beside the present one."""
        algorithm = self._algorithm
        first = (self.begun[-1].iteration if self.begun else algorithm.rl_iteration) + 1
        for iteration in range(first, algorithm.rl_iteration + self._max_staleness + 1):
            if not algorithm.may_begin(iteration):
                break
            self.begun.append(self._job(iteration, algorithm.expected(iteration)))

    def drain(self) -> None:
        """Wait until nothing is played; results are kept."""
        wait([job.future for job in self.begun])

    def forget(self, *more: Job) -> None:
        """Drop all iterations that have begun, and ``more``; their items are dealt again."""
        jobs = [*more, *self.begun]
        self.begun.clear()
        for job in jobs:
            job.future.cancel()
        wait([job.future for job in jobs])
        self._algorithm.deal_items_after(self.items)

    def close(self) -> None:
        """Stop at once; env runners that still play are killed."""
        self._closed = True
        self._jobs.put(None)
        jobs = [*self.begun, *([] if self._awaited is None else [self._awaited])]
        if not all(job.future.cancel() or job.future.done() for job in jobs):
            runners: Any = self._algorithm.env_runner_group
            for runner in runners._worker_manager.actors().values():
                ray.kill(runner)

    def check_open(self) -> None:
        """Raises: RolloutError: after :meth:`close`."""
        if self._closed:
            raise RolloutError("the run has ended")

    def _job(self, iteration: int, present: RunConfig) -> Job:
        algorithm = self._algorithm
        oldest = algorithm.policy_version + iteration - algorithm.rl_iteration - self._max_staleness
        job = Job(iteration, algorithm.played_by(present), present, oldest, Future())
        self._jobs.put(job)
        return job

    def _run(self) -> None:
        while (begun := self._next()) is not None:
            job, play = begun
            try:
                job.future.set_result(play())
            except BaseException as error:
                job.future.set_exception(error)

    def _next(self) -> tuple[Job, Callable[[], Played]] | None:
        """The next iteration and what plays it; one thread at a time, so that items are dealt in order."""
        algorithm = self._algorithm
        with self._turn:
            while (job := self._jobs.get()) is not None:
                if not job.future.set_running_or_notify_cancel():
                    continue
                try:
                    planned = algorithm.planned(job.present, job.iteration)
                    return job, partial(self._play, job, planned, algorithm.items_dealt(), time.perf_counter())
                except BaseException as error:
                    job.future.set_exception(error)
            self._jobs.put(None)  # For the other threads.
            return None

    def _play(self, job: Job, planned: Any, items: Mapping[str, int], began: float) -> Played:
        self.check_open()
        selected = self._algorithm.play_and_select(job.present, job.iteration, job.oldest, planned)
        # Refills deal more, but then nothing else is in play.
        return Played(selected, items if self._overlaps else self._algorithm.items_dealt(), began, time.perf_counter())
