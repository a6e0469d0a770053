"""What ``--resume`` takes from the file and what it refuses."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.experiments.files.reading import apply_overrides, load_text
from rllib_lmgame.experiments.results.curves import EXPERIMENT_FILE
from rllib_lmgame.experiments.run.callbacks import watched
from rllib_lmgame.experiments.run.resume import Resumption, check_unchanged, save_settings
from rllib_lmgame.experiments.spec import ExperimentSpec, make_specs

FILE = (
    "a:\n  run: PPO\n  env: CartPole-v1\n  stop: {training_iteration: 5}\n  config:\n    lr: 1.0e-4\n    gamma: "
    "{uniform: [0.9, 1]}\n"
)


def spec_of(directory, *overrides: str) -> ExperimentSpec:
    experiments, source = load_text(FILE, "x.yaml")
    (spec,) = make_specs(apply_overrides(experiments, source, [f"storage_path={directory}", *overrides]), source)
    return spec


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("config.lr=1e-3", "config.lr", "is 0.001, but the experiment was started with 0.0001"),
        ("config.gamma.uniform=[0.5, 1]", "config.gamma.uniform", "[0.9, 1]"),
        ("config.train_batch_size_per_learner=5", "config.train_batch_size_per_learner", "started without it"),
        ("num_samples=3", "num_samples", "restore"),
        ("checkpoint_config={num_to_keep: 2}", "checkpoint_config.num_to_keep", "without it"),
        ("scheduler={type: asha, metric: m, mode: max}", "scheduler", "without it"),
    ],
)
def test_a_change_that_tune_would_ignore_is_refused(tmp_path, override, key, words):
    save_settings(spec_of(tmp_path))
    with pytest.raises(ConfigError) as caught:
        check_unchanged(spec_of(tmp_path, override))
    assert caught.value.path == key
    assert words in caught.value.message
    assert caught.value.source == f"--set {override}"


def test_what_every_run_reads_anew_may_change(tmp_path):
    check_unchanged(spec_of(tmp_path))
    save_settings(spec_of(tmp_path))
    check_unchanged(
        spec_of(tmp_path, "stop.training_iteration=9", "max_failures=2", "callbacks=[wandb]", "report='os.path:join'")
    )


def test_settings_are_written_in_one_step(tmp_path, monkeypatch):
    save_settings(spec_of(tmp_path))
    before = (tmp_path / "a" / EXPERIMENT_FILE).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="full"):
        save_settings(spec_of(tmp_path, "config.lr=1e-3"))
    assert (tmp_path / "a" / EXPERIMENT_FILE).read_bytes() == before
    assert [path.name for path in (tmp_path / "a").iterdir()] == [EXPERIMENT_FILE]


class Trial(SimpleNamespace):
    """A saved trial."""

    def set_status(self, status: str) -> None:
        self.status = status

    def invalidate_json_state(self) -> None:
        self.saved = False


class Scheduler:
    """Notes what is added."""

    def __init__(self) -> None:
        self.added: list[str] = []

    def on_trial_add(self, tune_controller, trial) -> None:
        self.added.append(trial.status)


@pytest.mark.parametrize(
    ("status", "result", "stop", "after"),
    [
        ("TERMINATED", {"training_iteration": 5}, {"training_iteration": 8}, "PENDING"),
        ("TERMINATED", {"training_iteration": 5}, {"training_iteration": 5}, "TERMINATED"),
        ("TERMINATED", {"training_iteration": 3}, {"training_iteration": 8}, "TERMINATED"),  # A scheduler ended it.
        ("TERMINATED", {"training_iteration": 5, "env_runners": {"score": 2}}, {"env_runners/score": 1}, "TERMINATED"),
        ("PENDING", {"training_iteration": 3}, {"training_iteration": 8}, "PENDING"),
    ],
)
def test_saved_trials_get_the_new_stop(tmp_path, status, result, stop, after):
    options = spec_of(tmp_path, f"stop={stop}", "max_failures=7").options
    trial = Trial(
        status=status, last_result=result, stopping_criterion={"training_iteration": 5}, max_failures=0, saved=True
    )
    scheduler = watched(Scheduler, Resumption(options).take)()
    scheduler.on_trial_add(None, trial)
    assert scheduler.added == [trial.status] == [after]
    assert (trial.stopping_criterion, trial.max_failures, trial.saved) == (stop, 7, False)


def test_saved_trials_that_cannot_be_had_end_the_run(tmp_path):
    """Tune would begin from nothing without a word."""

    def refuse(trial) -> None:
        raise CheckpointError(f"{trial.name} is damaged")

    options = spec_of(tmp_path).options
    with pytest.raises(CheckpointError, match="could not be taken over"):
        Resumption(options).setup()
    resumption = Resumption(options, refuse)
    done = Trial(
        name="done",
        status="TERMINATED",
        last_result={"training_iteration": 5},
        stopping_criterion={"training_iteration": 5},
        max_failures=0,
    )
    resumption.take(done)
    resumption.setup()
    resumption.take(Trial(name="mine", status="PENDING", last_result={}, stopping_criterion={}, max_failures=0))
    with pytest.raises(CheckpointError, match="mine is damaged"):
        resumption.setup()
