"""What is done with what Tune tells, and with signals.

Of ``result.json``, with one line per iteration:

1. A trial that starts again goes on from its newest checkpoint: lines of later iterations are cut off first.
2. In a local directory lines go straight into the results, so that a sudden end of the driver loses none.

Of Ctrl-C, SIGTERM, SIGHUP and SIGUSR1:

1. After the first signal no trial starts, and each running one is saved at the end of its iteration. Then the run ends.
2. A trial stopped this way counts as unfinished, so ``--resume`` goes on from that checkpoint.
3. After the second signal the run stops at once, with the checkpoints there are.
4. A trial that fails at its configuration, as the next one would, ends its experiment as the first signal does.
5. A trial that waits for a lost engine gives up soon after the first signal and keeps its newest checkpoint.
6. A signal that the command was started to ignore (SIGHUP under ``nohup``) stays ignored.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ray.tune import Callback
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback

from rllib_lmgame.algorithms.checkpoints.background import EVERY, WRITTEN
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.results.files import ITERATION, RESULT_FILE, cut, json_lines
from rllib_lmgame.experiments.results.outcome import cause, is_misconfigured
from rllib_lmgame.experiments.run.signals import ENDINGS, leave_closed_output, set_handlers
from rllib_lmgame.inference.serving import interruption
from rllib_lmgame.telemetry.metrics import unknown_metric
from rllib_lmgame.telemetry.trial_names import names_of

SAY_EVERY_S = 30.0
"""Between two lines about the same wait."""


class WaitingCallback(Callback):
    """Prints a line every half minute while trials wait for resources, as a joined cluster may still grow; and one of
    each trial that starts again. ``request`` is that of one trial, ``keys`` the settings that ask for it.
    """

    def __init__(self, request: Any, keys: str) -> None:
        self._request = request
        self._keys = f" ({keys})" if keys else ""
        self._next = time.monotonic() + SAY_EVERY_S

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        text, start = cause(trial).splitlines()[-1], "begins anew: it has no checkpoint yet"
        if trial.checkpoint is not None:
            start = f"goes on from {trial.checkpoint.path}"
        failures = f"{trial.num_failures} of max_failures: {trial.max_failures}"
        name = names_of(trials).get(trial.trial_id, trial.trial_id)
        print(f"trial {name} failed ({failures}) and {start}: {text}", file=sys.stderr)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        now = time.monotonic()
        if any(trial.status == "RUNNING" for trial in trials):
            self._next = now + SAY_EVERY_S
        elif now >= self._next and any(trial.status == "PENDING" for trial in trials):
            import ray

            self._next = now + SAY_EVERY_S
            if any(group["state"] == "PENDING" for group in ray.util.placement_group_table().values()):
                free, asked = ray.available_resources(), self._request.required_resources
                amounts = ", ".join(f"{asked[kind]:g} {kind} (free {free.get(kind, 0):g})" for kind in asked)
                print(f"waiting for resources: a trial asks for {amounts}{self._keys}", file=sys.stderr, flush=True)


class MetricNames(Callback):
    """Compares the metrics that ``named`` keys of an experiment wait for with the first result of every trial.

    A warm start comes before the first result that counts. ``end`` ends the run, which then raises ``error``: what a
    callback raises, Tune would wrap.
    """

    def __init__(self, named: Mapping[str, str], end: Callable[[], None] = lambda: None) -> None:
        self.error: ConfigError | None = None
        self._named, self._end = named, end
        self._seen = set[str]()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if trial.trial_id in self._seen or result.get("phase") == 0:
            return
        self._seen.add(trial.trial_id)
        for key, metric in self._named.items():
            problem = unknown_metric(metric, result)
            if problem is not None and self.error is None:
                self.error = ConfigError(key, problem)
                self._end()


class WholeCheckpoints(Callback):
    """Lets Tune know of checkpoints that trials wrote while they went on."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        written, manager = result.pop(WRITTEN, None), trial.run_metadata.checkpoint_manager
        latest = manager._latest_checkpoint_result
        if written is not None:
            trial.on_checkpoint(written)
        if trial.status == "PAUSED" and EVERY in trial.config:
            # It goes on from the checkpoint of a better trial (`pbt`), and where it was stopped one may become whole.
            manager._latest_checkpoint_result = latest
            trial.storage._update_checkpoint_index({})

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        self.on_trial_result(iteration, trials, trial, vars(checkpoint))


@contextmanager
def oom_is_a_failure() -> Iterator[None]:
    """Let Tune take such a death as that of an actor, inside."""
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import OutOfMemoryError, RayActorError

    plain = RayActorManager._actor_task_failed

    def failed(self: Any, tracked_actor_task: Any, exception: Exception) -> None:
        known = RayActorError(error_msg=str(exception)) if isinstance(exception, OutOfMemoryError) else exception
        plain(self, tracked_actor_task, known)

    RayActorManager._actor_task_failed = failed
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = plain


PROGRESS_FILE = "progress.csv"


class ResultFile(JsonLoggerCallback):
    """Tune's logger of ``result.json`` with the guarantees above."""

    def log_trial_start(self, trial: Any) -> None:
        self.log_trial_end(trial)
        trial.init_local_path()
        if trial.storage.storage_filesystem.type_name == "local":
            path = Path(trial.storage.trial_fs_path) / RESULT_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            path = Path(trial.local_path) / RESULT_FILE
            if not path.exists():
                self._restore_from_remote(RESULT_FILE, trial)
        cut(path, iteration_kept(trial))
        self.update_config(trial, trial.config)
        self._trial_files[trial] = path.open("at", encoding="utf-8")


def iteration_kept(trial: Any) -> int | None:
    """The last iteration whose lines stay when a trial starts: its checkpoint's, or 0 without one.

    ``None``: all lines stay, since the checkpoint is another trial's (population-based training).
    """
    own = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
    if own is None:
        return 0
    if Path(own.checkpoint.path).parent != Path(trial.storage.trial_fs_path):
        return None
    return int(own.metrics.get(ITERATION, 0))


class ProgressFile(CSVLoggerCallback):
    """Tune's ``progress.csv``, which is written when the run ends, from ``result.json`` in a local directory."""

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        pass

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        import pandas as pd

        for trial in trials:
            directory = Path(trial.storage.trial_fs_path)
            results = [{**each, "config": None} for each in json_lines(directory / RESULT_FILE)]
            if results:
                table = pd.json_normalize(results, sep="/").drop(columns="config")
                table.to_csv(directory / PROGRESS_FILE, index=False)


class Interruption:
    """What signals arrived. One object per process: signal handlers belong to the process too."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.stopped = threading.Event()  # Makes Tune end its loop.
        self.told = False
        self.misconfigured = False  # A trial failed at its configuration.

    @property
    def ending(self) -> bool:
        """Whether no further trial starts."""
        return self.requested or self.misconfigured

    @property
    def requested(self) -> bool:
        """Whether a signal arrived."""
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        if self.requested:
            self.stopped.set()
            return
        self.signal = number
        leave_closed_output()
        then = "saving each trial when its iteration ends, then stopping (once more: stop at once)"
        print(f"\n{signal.Signals(number).name}: {then}", file=sys.stderr, flush=True)

    def end_at_once(self) -> None:
        """End this experiment, whose configuration is wrong, before anything of it is saved."""
        self.misconfigured = True
        self.stopped.set()

    def begin_experiment(self) -> None:
        """What was wrong with the configuration of another experiment ends that one alone."""
        if self.misconfigured:
            self.misconfigured = False
            self.stopped.clear()

    def tell(self) -> None:
        """Tell every process of the run. Not for the signal handler, which may interrupt a call to Ray."""
        if self.requested and not self.told:
            self.told = True
            interruption.request()

    def exit_code(self) -> int:
        return 128 + (self.signal or 0)


INTERRUPTION = Interruption()


@contextmanager
def handled_signals() -> Iterator[Interruption]:
    from ray.tune import tune

    INTERRUPTION.__init__()
    previous = set_handlers((signal.SIGINT, *ENDINGS), INTERRUPTION.handle)
    listen, tune._setup_signal_catching = tune._setup_signal_catching, lambda: INTERRUPTION.stopped
    try:
        yield INTERRUPTION
    finally:
        if INTERRUPTION.told:
            interruption.withdraw()
        tune._setup_signal_catching = listen
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Watched:
    """Mix-in of a trial scheduler that passes over results without its metric (NaN), and pauses trials, which saves
    them, once the run is to stop. Every trial that Tune adds is given to ``take``.
    """

    take: Callable[[Any], None] | None = None

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        if self.take is not None:
            self.take(trial)
        super().on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        result.pop(WRITTEN, None)  # Populations keep results.
        value = result.get(self.metric)  # type: ignore[attr-defined]
        if isinstance(value, float) and math.isnan(value):
            decision = "CONTINUE"
        else:
            decision = super().on_trial_result(tune_controller, trial, result)
        return "PAUSE" if INTERRUPTION.ending and decision == "CONTINUE" else decision

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_error(tune_controller, trial)
        if is_misconfigured(trial) and not INTERRUPTION.ending:
            INTERRUPTION.misconfigured = True
            print(f"{trial.trial_id}: the configuration is wrong; no further trial starts", file=sys.stderr, flush=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        if not INTERRUPTION.ending:
            return super().choose_trial_to_run(tune_controller)
        leave_closed_output()
        INTERRUPTION.tell()
        if not any(t.status == "RUNNING" or t.is_saving for t in tune_controller.get_trials()):
            INTERRUPTION.stopped.set()
        return None


def watched(scheduler: type, take: Callable[[Any], None] | None = None) -> type:
    """A trial scheduler like ``scheduler`` that does what this module promises."""
    more = {"__module__": __name__} if take is None else {"__module__": __name__, "take": staticmethod(take)}
    return type(scheduler.__name__, (_Watched, scheduler), more)
