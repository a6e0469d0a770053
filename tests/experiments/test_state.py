"""Damaged experiment states, and the newest whole checkpoint."""

from __future__ import annotations

import glob
import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow.fs
import pytest
from killed import killed_everywhere
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.tune import CheckpointConfig
from ray.tune.callback import Callback, CallbackList
from ray.tune.execution.experiment_state import _find_newest_experiment_checkpoint
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.utils import util
from ray.tune.utils.serialization import TuneFunctionEncoder

from rllib_lmgame.algorithms.checkpoints.manifest import ITERATION_FILE, write_manifest
from rllib_lmgame.algorithms.checkpoints.paths import MARKER, find_checkpoint
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.experiments.run.reruns import has_run
from rllib_lmgame.experiments.run.state import (
    COPY_FILE,
    adopt_newest,
    is_started,
    is_whole,
    keep_copy,
    mend,
    newest_whole,
    ways_on,
)
from rllib_lmgame.experiments.run.state_files import directories_are_no_patterns
from rllib_lmgame.rollouts.taught.files import files_of

SESSIONS = ("2026-01-01_10-00-00", "2026-01-02_10-00-00")


def write_state(directory: Path, session: str = SESSIONS[0], word: str = "a") -> list[Path]:
    """The files Tune leaves."""
    state = directory / f"experiment_state-{session}.json"
    state.write_text(
        json.dumps({"trial_data": [['{"status": "PENDING"}', '{"n": 1}']], "runner_data": {"word": word}, "stats": {}})
    )
    searcher = directory / f"basic-variant-state-{session}.json"
    searcher.write_bytes(pickle.dumps({"word": word}))
    return [state, searcher]


def pickled(value: object) -> dict[str, str]:
    """As Tune writes what JSON cannot hold."""
    return json.loads(json.dumps(value, cls=TuneFunctionEncoder))


def rewrite(state: Path, **changes: object) -> None:
    state.write_text(json.dumps({**json.loads(state.read_text()), **changes}))


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def words(directory: Path) -> list[str]:
    """What Tune would read: the newest file of each kind."""
    state, searcher = max(directory.glob("experiment_state-*")), max(directory.glob("basic-variant-state-*"))
    return [json.loads(state.read_text())["runner_data"]["word"], pickle.loads(searcher.read_bytes())["word"]]


def write_checkpoint(trial: Path, number: int, iteration: int) -> Path:
    checkpoint = trial / f"checkpoint_{number:06d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / MARKER).write_text("{}")
    (checkpoint / "weights").write_bytes(b"w" * 100)
    (checkpoint / ITERATION_FILE).write_text(json.dumps({"training_iteration": iteration}))
    write_manifest(checkpoint)
    return checkpoint


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", [halve, Path.unlink, lambda path: path.write_bytes(b"")])
def test_the_copy_replaces_a_damaged_state(tmp_path, which, damage):
    files = write_state(tmp_path)
    assert keep_copy(tmp_path, tmp_path)
    assert mend(tmp_path, "go") == []
    damage(files[which])
    if which == 1 and damage is Path.unlink:
        return  # A search without state of its own has no such file.
    (line,) = mend(tmp_path, "go")
    assert "last whole copy" in line
    assert words(tmp_path) == ["a", "a"]
    assert damage is Path.unlink or (tmp_path / f"damaged-{files[which].name}").exists()


HEX = pickled(CheckpointConfig(num_to_keep=2))["value"]


@pytest.mark.parametrize(
    "damaged", [HEX.replace("80", "8z", 1), HEX[:-2], HEX[:-1], HEX + "2e", "2e" + HEX, "ff" * 40, "", None, 7]
)
@pytest.mark.parametrize("where", ["runner", "trial", "bare field", "metadata"])
def test_pickles_inside_a_whole_json_file_are_walked(tmp_path, where, damaged):
    def content(value: object) -> dict[str, object]:
        wrapped = {"_type": "CLOUDPICKLE_FALLBACK", "value": value}
        fields = {
            "trial_id": "t",
            "storage": wrapped if where == "trial" else {},
            "extra_arg": value if where == "bare field" else HEX,
        }
        trial = [json.dumps(fields), json.dumps({"manager": [wrapped] if where == "metadata" else []})]
        return {"trial_data": [trial], "runner_data": {"word": "a", "stopper": wrapped if where == "runner" else None}}

    state, _ = write_state(tmp_path)
    rewrite(state, **content(HEX))
    assert is_whole(state) and keep_copy(tmp_path, tmp_path)
    good = state.read_bytes()
    rewrite(state, **content(damaged))
    assert not is_whole(state)
    (line,) = mend(tmp_path, "go")
    assert "last whole copy" in line and state.read_bytes() == good


def test_a_copy_that_is_damaged_inside_is_not_taken(tmp_path):
    state, searcher = write_state(tmp_path)
    assert keep_copy(tmp_path, tmp_path)
    copy = json.loads((tmp_path / COPY_FILE).read_text())
    (tmp_path / COPY_FILE).write_text(json.dumps({**copy, searcher.name: copy[searcher.name][:8]}))
    halve(state)
    with pytest.raises(CheckpointError, match="no copy"):
        mend(tmp_path, "go")


def test_a_state_without_trials_gives_way_to_one_that_holds_some(tmp_path):
    state, _ = write_state(tmp_path)
    good = state.read_bytes()
    assert keep_copy(tmp_path, tmp_path)
    rewrite(state, trial_data=[])
    (line,) = mend(tmp_path, "go")
    assert "last whole copy" in line and state.read_bytes() == good
    (tmp_path / COPY_FILE).unlink()
    later, _ = write_state(tmp_path, SESSIONS[1])
    rewrite(later, trial_data=[])
    (line,) = mend(tmp_path, "go")
    assert SESSIONS[0] in line and not later.exists()


def test_a_run_killed_before_its_first_trial_left_nothing(tmp_path):
    assert not is_started(tmp_path)
    state, _ = write_state(tmp_path)
    whole = state.read_text()
    assert is_started(tmp_path)
    state.write_text(json.dumps({**json.loads(whole), "trial_data": []}))
    assert not is_started(tmp_path) and not keep_copy(tmp_path, tmp_path)
    halve(state)
    assert is_started(tmp_path)


def test_a_damaged_state_is_never_copied(tmp_path):
    files = write_state(tmp_path)
    assert keep_copy(tmp_path, tmp_path)
    before = (tmp_path / COPY_FILE).read_bytes()
    for path in files:
        whole = path.read_bytes()
        halve(path)
        assert not is_whole(path)
        assert not keep_copy(tmp_path, tmp_path)
        path.write_bytes(whole)
    assert (tmp_path / COPY_FILE).read_bytes() == before


def test_without_a_copy_the_state_of_an_earlier_run_is_taken(tmp_path):
    write_state(tmp_path, SESSIONS[0], "old")
    for path in write_state(tmp_path, SESSIONS[1], "new"):
        halve(path)
    (line,) = mend(tmp_path, "go")
    assert SESSIONS[0] in line
    assert words(tmp_path) == ["old", "old"]


def test_with_nothing_whole_the_command_is_named(tmp_path):
    state, _ = write_state(tmp_path)
    halve(state)
    with pytest.raises(CheckpointError, match="no whole checkpoint either"):
        mend(tmp_path, "rllib train --restore")
    checkpoint = write_checkpoint(tmp_path / "trial", 1, 5)
    with pytest.raises(CheckpointError, match=f"rllib train --restore {checkpoint}"):
        mend(tmp_path, "rllib train --restore")
    assert state.exists()


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
    # num_to_keep: 2
    assert [path.exists() for path in (directory / "checkpoint_000000", *later)] == [False, True, True, True]


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


def test_a_death_in_the_middle_of_a_copy_leaves_a_whole_state(tmp_path):
    """Tune overwrites its files in place; then ours are copied: at any time there is something to go on from."""

    def prepare() -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "run").mkdir()
        write_state(tmp_path / "run", word="old")
        keep_copy(tmp_path / "run", tmp_path / "run")

    def step() -> None:
        write_state(tmp_path / "run", word="new")
        keep_copy(tmp_path / "run", tmp_path / "run")

    left = []
    for _ in killed_everywhere(prepare, step):
        mend(tmp_path / "run", "go")
        left.append(words(tmp_path / "run"))
    assert left[0] == ["old", "old"] and left[-1] == ["new", "new"]


def test_a_death_in_the_middle_of_mending_can_be_mended(tmp_path):
    def prepare() -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "run").mkdir()
        files = write_state(tmp_path / "run")
        keep_copy(tmp_path / "run", tmp_path / "run")
        for path in files:
            halve(path)

    deaths = 0
    for _ in killed_everywhere(prepare, lambda: mend(tmp_path / "run", "go")):
        mend(tmp_path / "run", "go")
        assert words(tmp_path / "run") == ["a", "a"]
        deaths += 1
    assert deaths >= 4


class Counting(Callback):
    def get_state(self):
        return {"count": 1}

    def set_state(self, state):
        assert state == {"count": 1}


def test_tune_finds_its_state_in_a_directory_whose_name_looks_like_a_pattern(tmp_path):
    directory = tmp_path / "run[1]*"
    directory.mkdir()
    (tmp_path / "run1").mkdir()
    with directories_are_no_patterns():
        search, callbacks = BasicVariantGenerator(), CallbackList([Counting()])
        for part in (search, callbacks):
            part.save_to_dir(str(directory), session_str="s")
            part.restore_from_dir(str(directory))
        assert search.has_checkpoint(str(directory)) and callbacks.can_restore(str(directory))
    assert util.glob is glob
    state, _ = write_state(directory)
    newest = write_checkpoint(directory / "lr=[1]_a", 1, 4)
    write_checkpoint(newest.parent, 0, 2)
    assert keep_copy(directory, directory) and is_started(directory) and mend(directory, "go") == []
    assert _find_newest_experiment_checkpoint(str(directory)) == str(state)
    assert newest_whole(newest.parent) == newest and find_checkpoint(str(directory)) == str(newest)
    assert str(newest) in ways_on(directory, "go") and has_run(directory)


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
