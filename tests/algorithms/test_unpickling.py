"""Before anything is unpickled the user is asked."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from rllib_lmgame.algorithms.checkpoints.paths import check_resuming, check_unpickling
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.cli import main


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """As a run leaves it under the usual umask 002."""
    place = tmp_path / "results" / "mine"
    (place / "trial" / "checkpoint_000000").mkdir(parents=True)
    (place / "trial" / "checkpoint_000000" / "algorithm_state.pkl").write_bytes(b"state")
    (place / "experiment_state-1.json").write_text("{}")
    for path in (place, *place.rglob("*")):
        path.chmod(0o775 if path.is_dir() else 0o664)
    return place


def test_a_checkpoint_needs_the_flag(experiment: Path) -> None:
    check_unpickling(str(experiment), trust=True)
    with pytest.raises(CheckpointError, match=r"holds pickled code.* --trust-checkpoint"):
        check_unpickling(str(experiment), trust=False)


@pytest.mark.parametrize(
    "open_it",
    [
        lambda place: (place / "trial" / "checkpoint_000000" / "algorithm_state.pkl").chmod(0o666),
        lambda place: (place / "trial").chmod(0o777),
        lambda place: place.chmod(0o777),
        lambda place: (place / "trial" / "more.pkl").symlink_to("/tmp/more.pkl"),
        pytest.param(
            lambda place: os.chown(place / "experiment_state-1.json", 12345, 12345),
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away"),
        ),
    ],
)
def test_what_others_can_change_is_not_resumed(experiment: Path, open_it) -> None:
    check_resuming(str(experiment), trust=False)
    check_resuming(str(experiment / "none"), trust=False)
    open_it(experiment)
    with pytest.raises(CheckpointError, match=r"not yours alone.* --trust-checkpoint"):
        check_resuming(str(experiment), trust=False)
    check_resuming(str(experiment), trust=True)


def test_the_commands_ask_before_anything_is_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``restore`` of pickles that would leave a file; evaluations unpickle nothing."""
    ran = tmp_path / "ran"

    class Runs:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.system, (f"touch {ran}",))

    checkpoint = tmp_path / "results" / "theirs" / "trial" / "checkpoint_000000"
    checkpoint.mkdir(parents=True)
    (checkpoint / "rllib_checkpoint.json").write_text("{}")
    for name in ("algorithm_state.pkl", "class_and_ctor_args.pkl"):
        (checkpoint / name).write_bytes(pickle.dumps(Runs()))
    train = [*["train", "--algo", "PPO", "--env", "CartPole-v1", "--stop"], "{training_iteration: 1}"]
    for arguments, said in (
        ([*train, "--restore", str(checkpoint)], "holds pickled code"),
        ([*train, "--restore", str(checkpoint), "--dry-run"], "holds pickled code"),
        (["evaluate", str(checkpoint), "--trust-checkpoint"], "no checkpoint of this package's algorithms"),
    ):
        assert main(arguments) == 2, arguments
        assert said in capsys.readouterr().err, arguments
    assert not ran.exists()
