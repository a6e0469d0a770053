"""One line per iteration in the files of results."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import pyarrow.fs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.experiments.results.files import cut, json_lines
from rllib_lmgame.experiments.run.callbacks import ProgressFile, ResultFile, iteration_kept


def line(iteration: int) -> str:
    return json.dumps({"training_iteration": iteration, "text": "ä\n"}) + "\n"


@given(iterations=st.integers(0, 6), last=st.one_of(st.none(), st.integers(0, 8)), torn=st.integers(0, 10))
def test_only_whole_lines_up_to_the_checkpoint_stay(tmp_path_factory, iterations, last, torn):
    path = tmp_path_factory.mktemp("results") / "result.json"
    path.write_text("".join(map(line, range(1, iterations + 1))) + line(iterations + 1)[:torn])
    cut(path, last)
    assert path.read_text() == "".join(map(line, range(1, (iterations if last is None else min(last, iterations)) + 1)))


@pytest.mark.parametrize(
    "damage",
    [
        "[" * 100_000,
        '{"training_iteration": ' + "[" * 100_000,
        '{"training_iteration": Infinity}',
        '{"training_iteration": 1e999}',
    ],
)
def test_a_line_of_nonsense_ends_the_results(tmp_path, damage):
    path = tmp_path / "result.json"
    path.write_text(line(1) + damage + "\n" + line(2))
    assert next(json_lines(path))["training_iteration"] == 1
    cut(path, None)
    assert path.read_text() == line(1)


class Trial(SimpleNamespace):
    """As much of a Tune trial as a logger looks at; hashable like one."""

    config = {"lr": 1}
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def init_local_path(self) -> None:
        pass

    def saved(self, iteration: int | None, directory: str = "") -> None:
        """The newest checkpoint is that of ``iteration``."""
        at = SimpleNamespace(path=f"{directory or self.storage.trial_fs_path}/checkpoint_000001")
        result = iteration and SimpleNamespace(checkpoint=at, metrics={"training_iteration": iteration})
        self.run_metadata = SimpleNamespace(checkpoint_manager=SimpleNamespace(latest_checkpoint_result=result))


@pytest.fixture
def trial(tmp_path):
    results, staged = tmp_path / "results" / "trial", tmp_path / "staged"
    staged.mkdir()
    made = Trial(
        local_path=str(staged),
        storage=SimpleNamespace(trial_fs_path=str(results), storage_filesystem=pyarrow.fs.LocalFileSystem()),
    )
    made.saved(None)
    return made


def play(logger, trial, *iterations: int, **more) -> None:
    for iteration in iterations:
        logger.log_trial_result(
            0, trial, {"training_iteration": iteration, "config": {}, "nested": {"value": iteration}, **more}
        )


def test_iterations_played_again_stand_once(trial, tmp_path):
    results = tmp_path / "results" / "trial"

    def iterations() -> list[int]:
        return [json.loads(each)["training_iteration"] for each in (results / "result.json").read_text().splitlines()]

    logger = ResultFile()
    logger.log_trial_start(trial)
    play(logger, trial, 1, 2, 3)
    assert iterations() == [1, 2, 3]  # There at once, in the results themselves.
    trial.saved(2)
    logger.log_trial_start(trial)  # The trial failed and goes on; the driver is the same.
    play(logger, trial, 3, 4, another=1)
    assert iterations() == [1, 2, 3, 4]
    again = ResultFile()
    again.log_trial_start(trial)  # The driver was killed; another one goes on.
    play(again, trial, 3)
    assert iterations() == [1, 2, 3]
    ProgressFile().on_experiment_end([trial])
    rows = list(csv.DictReader((results / "progress.csv").open()))
    assert [row["nested/value"] for row in rows] == ["1", "2", "3"] and "config" not in rows[0]
    trial.saved(None)
    ResultFile().log_trial_start(trial)  # Without a checkpoint a trial begins anew.
    assert iterations() == []


def test_what_another_trials_checkpoint_means(trial, tmp_path):
    trial.saved(7, str(tmp_path / "results" / "donor"))
    assert iteration_kept(trial) is None
    trial.saved(7)
    assert iteration_kept(trial) == 7
