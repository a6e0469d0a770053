"""Signals: the decisions, without a cluster."""

from __future__ import annotations

import io
import os
import pickle
import pty
import signal
import subprocess
import sys

import pytest
from ray.tune import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from rllib_lmgame.experiments.results.outcome import cause, reason
from rllib_lmgame.experiments.run.callbacks import INTERRUPTION, handled_signals, watched
from rllib_lmgame.inference.serving import interruption
from rllib_lmgame.telemetry.progress import ProgressCallback

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Trial:
    """As much of a Tune trial as the scheduler looks at."""

    def __init__(self, status: str, is_saving: bool = False) -> None:
        self.status = status
        self.is_saving = is_saving


class Controller:
    def __init__(self, *trials: Trial) -> None:
        self.trials = trials

    def get_trials(self):
        return list(self.trials)


@pytest.fixture
def stopped():
    """Handled signals; the event that ends Tune's loop."""
    with handled_signals():
        yield tune._setup_signal_catching()
    INTERRUPTION.signal, INTERRUPTION.misconfigured = None, False


@pytest.mark.parametrize("number", SIGNALS)
def test_after_a_signal_trials_are_saved_and_none_starts(stopped, number, capsys):
    scheduler = watched(FIFOScheduler)()
    os.kill(os.getpid(), number)
    assert "saving each trial" in capsys.readouterr().err
    assert scheduler.on_trial_result(Controller(), Trial("RUNNING"), {}) == "PAUSE"
    assert scheduler.choose_trial_to_run(Controller(Trial("PENDING"), Trial("RUNNING"))) is None
    assert scheduler.choose_trial_to_run(Controller(Trial("PAUSED", is_saving=True))) is None
    assert not stopped.is_set()
    assert scheduler.choose_trial_to_run(Controller(Trial("PENDING"), Trial("PAUSED"), Trial("TERMINATED"))) is None
    assert stopped.is_set()
    assert INTERRUPTION.exit_code() == 128 + number


def test_the_second_signal_stops_at_once(stopped):
    INTERRUPTION.handle(signal.SIGINT)
    assert not stopped.is_set()
    INTERRUPTION.handle(signal.SIGINT)
    INTERRUPTION.handle(signal.SIGINT)
    assert stopped.is_set()


def test_the_next_run_of_the_same_job_is_not_asked_to_stop(ray_cluster):
    with handled_signals() as signals:
        signals.handle(signal.SIGTERM)
        signals.tell()
        assert interruption._asked("get")
    assert not interruption._asked("get")


def test_handlers_are_put_back_and_an_ignored_signal_stays_ignored():
    of_tune = tune._setup_signal_catching
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As under `nohup`.
    before = [signal.getsignal(n) for n in SIGNALS]
    try:
        with handled_signals():
            assert signal.getsignal(signal.SIGTERM) == INTERRUPTION.handle
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert [signal.getsignal(n) for n in SIGNALS] == before and tune._setup_signal_catching is of_tune
    finally:
        signal.signal(signal.SIGHUP, ignored)


@pytest.mark.slow
@pytest.mark.parametrize(("terminal", "first"), [(True, True), (False, False)])
def test_output_that_nobody_reads_any_more_fails_no_print(terminal, first):
    """The terminal goes with SIGHUP, and `tee` dies of it a moment sooner or later; the run is to be saved still."""
    code = (
        "import signal, sys\n"
        "from ray.tune.schedulers import FIFOScheduler\n"
        "from types import SimpleNamespace\n"
        "from rllib_lmgame.experiments.run.callbacks import INTERRUPTION, watched\n"
        "INTERRUPTION.tell = lambda: None\n"
        "sys.stdin.readline()\n"
        "INTERRUPTION.handle(signal.SIGHUP)\n"
        "print('noted', file=sys.stderr, flush=True)\n"
        "sys.stdin.readline()\n"
        "watched(FIFOScheduler)().choose_trial_to_run(SimpleNamespace(get_trials=lambda: []))\n"
        "print('an iteration', flush=True)\n"
    )
    reader, of_program = pty.openpty() if terminal else os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=of_program, stderr=subprocess.PIPE
    )
    os.close(of_program)
    if first:
        os.close(reader)
    program.stdin.write(b"\n")
    program.stdin.flush()
    while "noted" not in (said := program.stderr.read1().decode()):
        assert said
    if not first:
        os.close(reader)
    program.communicate(b"\n")
    assert program.returncode == 0


def test_schedulers_can_be_saved_with_the_experiment():
    from ray import cloudpickle

    again = pickle.loads(cloudpickle.dumps(watched(ASHAScheduler)(metric="m", mode="max")))
    assert isinstance(again, ASHAScheduler)
    assert again._metric == "m"


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("rllib_lmgame.base.errors.ConfigError: config.env: no", True),
        ("rllib_lmgame.base.errors.MissingDependencyError: config.inference.engine: no", True),
        ("ValueError: rllib_lmgame.base.errors.ConfigError is a class", False),
    ],
)
def test_a_sweep_ends_at_the_first_configuration_error(stopped, text, ends, tmp_path, capsys):
    scheduler, waiting, failed = watched(FIFOScheduler)(), Trial("PENDING"), Trial("ERROR")
    failed.trial_id, failed.error_file = "a_0", str(tmp_path / "error.txt")
    (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred)\n\x1b[36mray::LMGamePPO.train()\n  File x\n{text}\n")
    scheduler.on_trial_error(Controller(), failed)
    assert ("a_0: the configuration is wrong; no further trial starts" in capsys.readouterr().err) is ends
    assert scheduler.on_trial_result(Controller(), Trial("RUNNING"), {}) == ("PAUSE" if ends else "CONTINUE")
    assert scheduler.choose_trial_to_run(Controller(waiting)) is (None if ends else waiting)
    assert stopped.is_set() is ends
    assert "ray::" not in cause(failed)
    line = io.StringIO()
    ProgressCallback(stream=line, why=reason).on_trial_error(1, [], failed)
    assert line.getvalue() == f"failed: {text.partition(': ')[2] if ends else text}\n"
