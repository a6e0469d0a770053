"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR1: end with a checkpoint, leave no process behind.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rllib_lmgame.experiments.results.outcome import is_misconfigured
from rllib_lmgame.experiments.run.signals import ENDINGS, leave_closed_output, set_handlers
from rllib_lmgame.inference.serving import interruption


class Interruption:
    """What signals arrived. One object per process: signal handlers belong to the process too."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.stopped = threading.Event()
        self.told = False
        self.misconfigured = False
        """Whether a trial failed at its configuration."""

    @property
    def ending(self) -> bool:
        """Whether no further trial starts."""
        return self.requested or self.misconfigured

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        if self.requested:
            self.stop_now()
            return
        self.signal = number
        leave_closed_output()
        print(
            f"\n{signal.Signals(number).name}: saving each trial when its iteration ends, then stopping (once "
            "more: stop at once)",
            file=sys.stderr,
            flush=True,
        )

    def stop_now(self) -> None:
        """Make Tune end its loop."""
        self.stopped.set()

    def end_at_once(self) -> None:
        """End this experiment, whose configuration is wrong, before anything of it is saved."""
        self.misconfigured = True
        self.stop_now()

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

    INTERRUPTION.__init__()  # type: ignore[misc]
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
        super().on_trial_add(tune_controller, trial)  # type: ignore[misc]

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        value = result.get(self.metric)  # type: ignore[attr-defined]
        if isinstance(value, float) and math.isnan(value):
            decision = "CONTINUE"
        else:
            decision = super().on_trial_result(tune_controller, trial, result)  # type: ignore[misc]
        return "PAUSE" if INTERRUPTION.ending and decision == "CONTINUE" else decision

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_error(tune_controller, trial)  # type: ignore[misc]
        if is_misconfigured(trial) and not INTERRUPTION.ending:
            INTERRUPTION.misconfigured = True
            print(f"{trial.trial_id}: the configuration is wrong; no further trial starts", file=sys.stderr, flush=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        if not INTERRUPTION.ending:
            return super().choose_trial_to_run(tune_controller)  # type: ignore[misc]
        leave_closed_output()
        INTERRUPTION.tell()
        if not any(t.status == "RUNNING" or t.is_saving for t in tune_controller.get_trials()):
            INTERRUPTION.stop_now()
        return None


def watched(scheduler: type, take: Callable[[Any], None] | None = None) -> type:
    """A trial scheduler like ``scheduler`` that does what this module promises."""
    more = {"__module__": __name__} if take is None else {"__module__": __name__, "take": staticmethod(take)}
    return type(scheduler.__name__, (_Watched, scheduler), more)
