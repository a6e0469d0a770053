"""What a trial does when what it had learned is lost: it ends, or goes back to its best weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPO

from rllib_lmgame.algorithms.base import BEST, LMGameAlgorithm
from rllib_lmgame.algorithms.checkpoints.background import BackgroundCheckpoints
from rllib_lmgame.algorithms.checkpoints.manifest import iteration_of, write_iteration, write_manifest
from rllib_lmgame.algorithms.checkpoints.paths import MARKER
from rllib_lmgame.measures.collapse import CollapseGuard, CollapseOptions


class Algorithm(LMGameAlgorithm):
    """As the algorithm trains, with results of these ``rates``; ``went_back`` are iterations that loaded the best."""

    iteration, _tune_trial, _policy_version, _at_start, _best, warm_up = 0, None, 0, False, None, 0

    def __init__(self, place: Path, rates: list[float], **options: Any) -> None:
        self.place, self.rates, self.went_back = place, rates, list[int]()
        self._checkpoints = BackgroundCheckpoints(0)
        self._guard = CollapseGuard(CollapseOptions(success=0.5, patience=1, **options), "")
        evaluation = SimpleNamespace(best="env_runners/success_rate", best_order="max")
        run = SimpleNamespace(evaluation_config=evaluation)
        self.config = SimpleNamespace(run=run, evaluation_interval=3)  # type: ignore[assignment]

    def trial_directory(self) -> Path:
        return self.place

    def save_to_path(self, path: Any = None, **kwargs: Any) -> str:
        path.mkdir(exist_ok=True)
        (path / MARKER).touch()
        write_iteration(path, self.iteration)
        write_manifest(path)
        return str(path)

    def restore_learners(self, checkpoint: Path) -> None:
        assert checkpoint == self.place / BEST
        self.went_back.append(self.iteration)


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: Any) -> dict[str, Any]:
        runners = {"success_rate": self.rates[self.iteration], "judged_episodes": 500.0}
        self.iteration += 1
        learners = {"a": {"entropy": 1 - runners["success_rate"]}}
        phase = {"phase": float(self.iteration > self.warm_up)}
        done = {"training_iteration": self.iteration, "done": False, "evaluation": {"env_runners": runners}}
        return {**phase, **done, "env_runners": runners, "learners": learners}

    monkeypatch.setattr(PPO, "train", train)


def test_a_run_stops_and_says_what_it_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    algorithm = Algorithm(tmp_path, [0.7, 0.8, 0.1])
    *before, last = [algorithm.train() for _ in range(3)]
    assert last["done"] and not any(each["done"] or "collapse" in each for each in before) and not algorithm.went_back
    fell = "collapse in iteration 3: env_runners/success_rate fell from 0.8 (iteration 2) to 0.1"
    assert last["collapse"] == f"{fell}; the trial ends; the best is of iteration 2 ({tmp_path / BEST})"
    assert last["collapse"] in capsys.readouterr().err


def test_a_run_goes_back_as_often_as_it_may_also_when_it_was_resumed(tmp_path: Path) -> None:
    first, second = (Algorithm(tmp_path, [0.8, 0.1, 0.6, 0.1], type="restore", max_restores=2) for _ in range(2))
    told = [first.train() for _ in range(2)][-1]
    assert f"training goes on with the weights of iteration 1 ({tmp_path / BEST})" in told["collapse"]
    second.set_lmgame_state(first.lmgame_state())
    assert [second.train()["done"] for _ in range(4)] == [False, False, False, True]
    assert first.went_back == second.went_back == [2]


def test_without_a_best_checkpoint_it_stops(tmp_path: Path) -> None:
    algorithm = Algorithm(tmp_path, [0.8, 0.1], type="restore")
    algorithm._best = 0.9  # That of the run whose checkpoint this one began with.
    assert [algorithm.train() for _ in range(2)][-1]["collapse"].endswith("the trial ends; there is no best checkpoint")


def test_a_validation_of_the_warm_start_is_not_the_best_evaluation(tmp_path: Path) -> None:
    algorithm = Algorithm(tmp_path, [0.8, 0.8, 0.6, 0.7])
    algorithm.warm_up, algorithm.config.run.evaluation_config.best = 3, "evaluation/env_runners/success_rate"
    assert [algorithm.train() and algorithm._best for _ in range(4)] == [None, None, 0.6, 0.7]


def test_what_evaluates_best_as_it_collapses_is_the_best(tmp_path: Path) -> None:
    algorithm = Algorithm(tmp_path, [0.8, 0.1], type="restore")
    algorithm.config.run.evaluation_config.best_order = "min"
    told = [algorithm.train() for _ in range(2)][-1]
    assert iteration_of(tmp_path / BEST) == 2 and "the weights of iteration 2" in told["collapse"]
