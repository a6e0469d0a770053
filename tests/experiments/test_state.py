"""Damaged experiment states, and the newest whole checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow.fs
import pytest
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.tune import CheckpointConfig

from rllib_lmgame.algorithms.checkpoints.manifest import ITERATION_FILE, write_manifest
from rllib_lmgame.algorithms.checkpoints.paths import MARKER, find_checkpoint
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.datasets.files import files_of
from rllib_lmgame.experiments.run.resume import adopt_newest, is_started, newest_whole


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write_checkpoint(trial: Path, number: int, iteration: int) -> Path:
    checkpoint = trial / f"checkpoint_{number:06d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / MARKER).write_text("{}")
    (checkpoint / "weights").write_bytes(b"w" * 100)
    (checkpoint / ITERATION_FILE).write_text(json.dumps({"training_iteration": iteration}))
    write_manifest(checkpoint)
    return checkpoint


def test_a_run_killed_before_its_first_trial_left_nothing(tmp_path):
    assert not is_started(tmp_path)
    state = tmp_path / "experiment_state-2026-01-01_10-00-00.json"
    for content, started in (({"trial_data": [["{}", "{}"]]}, True), ({"trial_data": []}, False)):
        state.write_text(json.dumps(content))
        assert is_started(tmp_path) is started
    halve(state)
    assert is_started(tmp_path)


def test_the_newest_whole_checkpoint_is_found(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "lr=[1]_a", 1, 5)
    write_checkpoint(checkpoint.parent, 0, 2)
    assert newest_whole(checkpoint.parent) == checkpoint and find_checkpoint(str(tmp_path)) == str(checkpoint)


class Trial(SimpleNamespace):
    """As much of a restored Tune trial as is looked at."""

    trial_id = "t"

    def invalidate_json_state(self) -> None:
        pass

    @property
    def latest(self) -> tuple[str, int]:
        result = self.run_metadata.checkpoint_manager.latest_checkpoint_result
        return Path(result.checkpoint.path).name, result.metrics["training_iteration"]


@pytest.fixture
def trial(tmp_path) -> Trial:
    directory = tmp_path / "trial"
    directory.mkdir()
    lines = [json.dumps({"training_iteration": iteration, "score": iteration}) for iteration in range(1, 9)]
    (directory / "result.json").write_text("\n".join(lines) + "\n")
    storage = SimpleNamespace(
        trial_fs_path=str(directory), storage_filesystem=pyarrow.fs.LocalFileSystem(), current_checkpoint_index=-1
    )
    manager = _CheckpointManager(CheckpointConfig(num_to_keep=2))
    metadata = SimpleNamespace(checkpoint_manager=manager, invalidate_cache=lambda: None)
    return Trial(storage=storage, run_metadata=metadata)


def adopted(trial: Trial) -> tuple[str, int]:
    adopt_newest(trial)
    return trial.latest


def test_a_checkpoint_the_state_does_not_know_is_adopted(trial):
    directory = Path(trial.storage.trial_fs_path)
    adopt_newest(trial)
    # Nothing there: the trial begins anew.
    assert trial.run_metadata.checkpoint_manager.latest_checkpoint_result is None
    write_checkpoint(directory, 0, 2)
    assert adopted(trial) == ("checkpoint_000000", 2)
    later = [write_checkpoint(directory, number, 2 * number + 2) for number in (1, 2, 3)]
    halve(later[-1] / "weights")
    assert adopted(trial) == ("checkpoint_000002", 6)
    assert trial.run_metadata.checkpoint_manager.latest_checkpoint_result.metrics["score"] == 6
    assert trial.storage.current_checkpoint_index == 2  # The damaged one is written again.


def test_a_known_checkpoint_that_is_damaged_gives_way_to_the_one_before(trial):
    directory = Path(trial.storage.trial_fs_path)
    first = write_checkpoint(directory, 0, 3)
    adopt_newest(trial)
    second = write_checkpoint(directory, 1, 6)
    adopt_newest(trial)
    halve(second / "weights")
    assert newest_whole(directory) == first
    assert adopted(trial) == ("checkpoint_000000", 3)
    halve(first / "weights")
    with pytest.raises(CheckpointError, match=r"trial t has no whole checkpoint to go on from: .*weights"):
        adopt_newest(trial)


def test_another_trials_checkpoint_stays(trial, tmp_path):
    donor = write_checkpoint(tmp_path / "donor", 4, 8)
    own, trial.storage.trial_fs_path = trial.storage.trial_fs_path, str(donor.parent)
    assert adopted(trial) == ("checkpoint_000004", 8)
    trial.storage.trial_fs_path = own
    write_checkpoint(Path(own), 0, 2)
    assert adopted(trial) == ("checkpoint_000004", 8)


def test_directories_that_exist_are_no_part_of_a_pattern(tmp_path, monkeypatch):
    for place in ("run[1]/logs", "run1/logs"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.jsonl").write_text("{}\n")
    logs = tmp_path / "run[1]" / "logs"
    assert files_of(f"{logs}/*.jsonl") == files_of(f"{logs.parent}/**/*.jsonl") == [logs / "a.jsonl"]
    assert len(files_of(f"{tmp_path}/run*/logs/*.jsonl")) == 2
    monkeypatch.chdir(logs)
    assert files_of("*.jsonl") == [Path("a.jsonl")]
    with pytest.raises(ConfigError, match="no such file"):
        files_of(f"{logs}/*.csv")
