"""Which checkpoint a path means."""

from __future__ import annotations

import pytest

from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
from rllib_lmgame.base.errors import CheckpointError


def make_checkpoint(path):
    path.mkdir(parents=True)
    (path / "rllib_checkpoint.json").write_text('{"ray_version": "2.60.0"}')
    return path


def test_a_checkpoint_a_trial_and_an_experiment(tmp_path):
    make_checkpoint(tmp_path / "exp" / "trial" / "checkpoint_000001")
    newest = make_checkpoint(tmp_path / "exp" / "trial" / "checkpoint_000010")
    (tmp_path / "exp" / "trial" / "checkpoint_000011").mkdir()
    for path in (newest, tmp_path / "exp" / "trial", tmp_path / "exp"):
        assert find_checkpoint(str(path)) == str(newest)


def test_several_trials_are_listed(tmp_path):
    first = make_checkpoint(tmp_path / "a" / "checkpoint_000000")
    second = make_checkpoint(tmp_path / "b" / "checkpoint_000003")
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(str(tmp_path))
    assert str(first) in str(caught.value) and str(second) in str(caught.value)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path, words in (
        (tmp_path, "holds no checkpoint"),
        (tmp_path / "none", "no such directory"),
        (f"{tmp_path}:player-2", "no such directory: .*one policy or league member of it is a player"),
        (tmp_path / "file", "is a file"),
    ):
        with pytest.raises(CheckpointError, match=words):
            find_checkpoint(str(path))


def test_a_model_is_told_from_checkpoints(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=f"it is a model, as a player written hf:{tmp_path}"):
        find_checkpoint(str(tmp_path))


def test_own_checkpoints_are_told_from_stock_ones(tmp_path):
    own, stock = make_checkpoint(tmp_path / "own"), make_checkpoint(tmp_path / "stock")
    (own / "manifest.json").write_text("{}")
    assert is_own_checkpoint(str(own))
    assert not is_own_checkpoint(str(stock))
