"""What TensorBoard is shown of a trial, read back from its event files."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX.record_writer import RecordWriter

from rllib_lmgame.experiments.results.tensorboard import TensorBoardFile
from tests.experiments.test_result_files import Trial


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(local_path=str(tmp_path), path=str(tmp_path), trial_id="t", evaluated_params={"lr": 0.1})


def result(iteration: int, **more: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "phase": 1.0,
        "own": 2.0,
        "env_runners": {"success_rate": 0.25, "episode_return_mean": 1.0, "games": {"lake": {"success_rate": 0.25}}},
        "learners": {"player": {"entropy": 0.5, "policy_loss": 0.1}, "__all_modules__": {"entropy": 0.5}},
        "timers": {"rollout_s": 1.0, "training_step": 2.0},
        **more,
    }


def logged(trial: Trial, *results: Mapping[str, Any]) -> None:
    file = TensorBoardFile()
    for each in results:
        file.log_trial_result(each["training_iteration"], trial, dict(each))
    file.log_trial_end(trial)


def events_of(directory: Path) -> EventAccumulator:
    events = EventAccumulator(str(directory), size_guidance={"tensors": 0, "images": 0, "scalars": 0})
    events.Reload()
    return events


def test_numbers_stand_in_groups(trial, tmp_path):
    logged(trial, result(1), result(2))
    events = events_of(tmp_path)
    assert {tag for tag in events.Tags()["scalars"] if not tag.startswith("_hparams_")} == {
        *("trial/own", "trial/phase"),
        *("env_runners/success_rate", "env_runners/episode_return_mean", "env_runners/games/lake/success_rate"),
        *("learners/player/entropy", "learners/player/policy_loss", "learners/__all_modules__/entropy"),
        *("timers/rollout_s", "timers/training_step"),
    }
    assert [(event.step, event.value) for event in events.Scalars("env_runners/success_rate")] == [(1, 0.25), (2, 0.25)]


def test_a_full_disk_costs_the_rest_of_the_file(trial, tmp_path, monkeypatch, caplog):
    whole, left = RecordWriter.write, iter(range(12))

    def write(self: Any, content: bytes) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(self, content)
        self.flush()  # Else it is in memory, and in the file when tensorboardX's thread or ours next says so.

    monkeypatch.setattr(RecordWriter, "write", write)
    logged(trial, *map(result, range(1, 31)))
    assert [record.getMessage() for record in caplog.records].count(
        "TensorBoard's file ends here, it cannot be written: [Errno 28] No space left on device"
    ) == 1
    assert [event.step for event in events_of(tmp_path).Scalars("trial/phase")] == [1, 2]
