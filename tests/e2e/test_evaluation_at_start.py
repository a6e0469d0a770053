"""Result 0 is an evaluation before the first update, and the best checkpoint is kept."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from learner_weights import weights_of
from ray.tune.experiment import Trial
from ray.tune.utils import flatten_dict

from rllib_lmgame.algorithms.base import BEST
from rllib_lmgame.algorithms.checkpoints.manifest import verify_manifest
from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint

RETURN = "evaluation/env_runners/best_return_mean"


@pytest.mark.slow
def test_a_run_begins_with_an_evaluation_and_keeps_what_did_best(
    start, make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"at_start": True, "samples": 2, "best": RETURN, "best_order": "min"}
    evaluation = {"evaluation_interval": 1, "evaluation_duration": 3, "evaluation_config": own}
    config = make_config(**evaluation, on_collapse="restore", language_model={"model": "tiny"})
    algorithm = start(config)
    first = algorithm.train()
    begun = weights_of(algorithm)
    assert first["training_iteration"] == algorithm.iteration == algorithm.policy_version == 0
    numbers = first["evaluation"]["env_runners"]
    assert numbers["num_episodes"] == 6 and 0 <= numbers["pass_at_k"] <= 1
    assert math.isnan(first["learners"]["player"]["policy_loss"]), "nothing was learnt"
    trial = Trial("x", stopping_criterion={}, stub=True)
    trial.stopping_criterion = {RETURN: numbers["best_return_mean"]}
    assert trial.should_stop(flatten_dict(first))
    best = algorithm.trial_directory() / BEST
    verify_manifest(best)
    assert find_checkpoint(str(best)) == str(best)
    algorithm._best = -math.inf  # Nothing will be better.
    before = (best / "manifest.json").read_bytes()
    second = algorithm.train()
    assert second["training_iteration"] == algorithm.policy_version == 1
    assert (best / "manifest.json").read_bytes() == before
    shutil.rmtree(algorithm.config.model_files["player"].directory())  # As cleaners of temporary files do.
    checkpoint = algorithm.save_to_path(tmp_path / "checkpoint")
    algorithm._best, algorithm._at_start = None, True
    algorithm.restore_from_path(checkpoint)
    assert algorithm._best == -math.inf and not algorithm._at_start
    monkeypatch.setattr(algorithm._guard, "seen", lambda result: "success fell")
    third, weights = algorithm.train(), weights_of(algorithm)
    assert third["training_iteration"] == algorithm.policy_version == 2, "an evaluation at the start comes once"
    assert "goes on with the weights of iteration 0" in third["collapse"] and not third["done"]
    assert all(np.array_equal(begun[name], weights[name]) for name in begun)
    monkeypatch.undo()
    last = algorithm.train()
    assert last["training_iteration"] == 3 and last["learners"]["player"]["logprob_diff"] < 1e-3, "engines went back"
    (best / "algorithm_state.pkl").write_bytes(b"")
    monkeypatch.setattr(algorithm._guard, "seen", lambda result: "success fell")
    ended = algorithm.train()
    assert ended["done"] and f"{best}/algorithm_state.pkl is truncated" in ended["collapse"]
