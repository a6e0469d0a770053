"""Checkpoints that are written while training goes on: who learns of them when, and what becomes of errors."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rllib_lmgame.algorithms.base import LMGameAlgorithm
from rllib_lmgame.algorithms.checkpoints import background
from rllib_lmgame.algorithms.checkpoints.background import EVERY, WRITTEN, BackgroundCheckpoints
from rllib_lmgame.algorithms.checkpoints.manifest import manifest_problem
from rllib_lmgame.algorithms.checkpoints.paths import MARKER, is_checkpoint
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.experiments.run.callbacks import WholeCheckpoints


class Storage:
    """Tune's, with copies that wait for ``go``, or fail."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.index, self.go, self.error = directory, -1, threading.Event(), ""
        self.copied: list[list[str]] = []

    @property
    def checkpoint_fs_path(self) -> str:
        return str(self.directory / f"checkpoint_{self.index:06d}")

    def _update_checkpoint_index(self, metrics: Any) -> None:
        self.index += 1

    def persist_current_checkpoint(self, checkpoint: Any) -> Any:
        assert self.go.wait(30)
        if self.error:
            raise OSError(self.error)
        target = Path(self.checkpoint_fs_path)
        target.mkdir(parents=True, exist_ok=True)
        files = sorted(Path(checkpoint.path).iterdir())
        for file in files:
            assert not is_checkpoint(target), "what is not whole yet counts as a checkpoint"
            (target / file.name).write_bytes(file.read_bytes())
        self.copied.append([file.name for file in files])
        return SimpleNamespace(path=str(target))


class Algorithm(LMGameAlgorithm):
    """As the algorithm trains and saves, with files instead of learners."""

    def __init__(self, storage: Storage, every: int) -> None:
        self._storage, self._iteration = storage, 0
        self._checkpoints = BackgroundCheckpoints(every)
        run = SimpleNamespace(evaluation_config=SimpleNamespace(best=None, best_order="max"))
        self.config = SimpleNamespace(run=run, evaluation_interval=None)  # type: ignore[assignment]

    iteration = property(lambda self: self._iteration)

    def _write_files(self, scratch: Path, **kwargs: Any) -> None:
        (scratch / "weights").write_text(f"of iteration {self.iteration}")
        (scratch / MARKER).write_text("{}")


@pytest.fixture
def algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Algorithm:
    from ray.rllib.algorithms.ppo import PPO

    def train(self: Any) -> dict[str, Any]:
        self._iteration += 1
        return {"training_iteration": self._iteration}

    monkeypatch.setattr(PPO, "train", train)
    monkeypatch.setattr(PPO, "save", lambda self, directory: SimpleNamespace(checkpoint=SimpleNamespace(path="now")))
    return Algorithm(Storage(tmp_path), 2)


def settled(algorithm: Algorithm) -> None:
    algorithm._storage.go.set()
    assert algorithm._checkpoints._pending is not None
    algorithm._checkpoints._pending.exception(30)


def trial_that(on_checkpoint: Any, status: str = "RUNNING", storage: Any = None) -> Any:
    metadata = SimpleNamespace(checkpoint_manager=SimpleNamespace(_latest_checkpoint_result="a better trial's"))
    more = {"config": {EVERY: 1}, "storage": storage, "run_metadata": metadata}
    return SimpleNamespace(on_checkpoint=on_checkpoint, status=status, **more)


@pytest.mark.parametrize(("status", "latest", "index"), [("RUNNING", "own", -1), ("PAUSED", "a better trial's", 0)])
def test_what_a_trial_wrote_does_not_replace_a_better_ones(
    status: str, latest: str, index: int, tmp_path: Path
) -> None:
    """A population changes a trial before callbacks get its result. What it still writes has a name of its own."""
    trial = trial_that(lambda own: setattr(manager, "_latest_checkpoint_result", own), status, Storage(tmp_path))
    manager = trial.run_metadata.checkpoint_manager
    WholeCheckpoints().on_trial_result(0, [], trial, {WRITTEN: "own"})
    assert (manager._latest_checkpoint_result, trial.storage.index) == (latest, index)


def test_training_goes_on_and_tune_learns_of_a_checkpoint_when_it_is_whole(algorithm: Algorithm) -> None:
    known: list[Any] = []
    trial, callback = trial_that(known.append), WholeCheckpoints()
    results = [algorithm.train() for _ in range(3)]
    assert not any(WRITTEN in result for result in results), "it is not written yet"
    settled(algorithm)
    results.append(algorithm.train())
    for result in results:
        callback.on_trial_result(0, [], trial, result)
        assert WRITTEN not in result
    (written,) = known
    place = Path(written.checkpoint.path)
    assert written.metrics == {"training_iteration": 2}
    assert (place / "weights").read_text() == "of iteration 2"
    assert manifest_problem(place) is None and is_checkpoint(place)
    assert algorithm._storage.copied[0] == ["weights"], "what makes it a checkpoint comes last"


def test_what_tune_asks_for_is_of_this_iteration_and_brings_an_earlier_one_along(algorithm: Algorithm) -> None:
    known: list[str] = []
    trial = trial_that(lambda written: known.append(Path(written.checkpoint.path).name))
    algorithm._storage.go.set()
    algorithm.train(), algorithm.train()
    assert Path(algorithm.save().checkpoint.path).name == "checkpoint_000000", "the one that was begun"
    algorithm.train(), algorithm.train()
    algorithm._iteration += 1  # As if it had not become whole by the next result.
    saved = algorithm.save()
    assert saved.checkpoint.path == "now"
    WholeCheckpoints().on_checkpoint(0, [], trial, saved.checkpoint)
    assert known == ["checkpoint_000001"] and not hasattr(saved.checkpoint, WRITTEN)


@pytest.mark.parametrize("then", ["train", "save"])
def test_an_error_is_raised_by_what_comes_next(algorithm: Algorithm, then: str, tmp_path: Path) -> None:
    algorithm._storage.error = "No space left on device"
    algorithm.train(), algorithm.train()
    settled(algorithm)
    with pytest.raises(CheckpointError, match=r"checkpoint_000000 could not be written: No space left"):
        getattr(algorithm, then)()
    assert not is_checkpoint(tmp_path / "checkpoint_000000")


@pytest.mark.parametrize("full", [False, True])
def test_the_files_made_are_removed(
    full: bool, algorithm: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.setattr(background.tempfile, "tempdir", str(made))

    def fails(scratch: Path) -> None:
        (scratch / "weights").write_text("half")
        raise OSError("No space left on device")

    if full:
        monkeypatch.setattr(algorithm, "_write_files", fails)
    algorithm.train()
    with pytest.raises(OSError, match="No space left") if full else nullcontext():
        algorithm.train()
    if not full:
        assert list(made.iterdir())
        settled(algorithm)
    assert not list(made.iterdir())
