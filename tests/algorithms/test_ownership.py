"""Which checkpoints and experiments count as this user's."""

from __future__ import annotations

import os
import pickle
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from rllib_lmgame.algorithms.checkpoints.manifest import write_manifest
from rllib_lmgame.algorithms.checkpoints.ownership import (
    SIGNATURE_FILE,
    check_resuming,
    check_unpickling,
    mark_experiment,
    wrote_checkpoint,
    wrote_experiment,
)
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.cli import main


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """An experiment of a stock algorithm, as a run of this user leaves it."""
    place = tmp_path / "results" / "mine"
    mark_experiment(str(place))
    (place / "trial" / "checkpoint_000000").mkdir(parents=True)
    (place / "trial" / "checkpoint_000000" / "algorithm_state.pkl").write_bytes(b"state")
    (place / "experiment_state-1.json").write_text("{}")
    return place


def checkpoint_of(experiment: Path) -> Path:
    return experiment / "trial" / "checkpoint_000000"


def test_what_a_run_of_this_user_started_is_the_users(experiment: Path) -> None:
    assert wrote_experiment(str(experiment)) and wrote_checkpoint(checkpoint_of(experiment))
    check_resuming(str(experiment), trust=False)
    check_unpickling(str(checkpoint_of(experiment)), trust=False)


def test_an_archive_of_it_unpacked_elsewhere_is_not(experiment: Path, tmp_path: Path) -> None:
    """Its files belong to whoever unpacks them, the signature is of another path; this user's own archive is no better
    than a stranger's.
    """
    copy = Path(shutil.copytree(experiment, tmp_path / "copy"))
    assert (copy / SIGNATURE_FILE).is_file() and (copy / "trial").stat().st_uid == os.getuid()
    assert not wrote_experiment(str(copy)) and not wrote_checkpoint(checkpoint_of(copy))
    for check in (
        lambda: check_resuming(str(copy), trust=False),
        lambda: check_unpickling(str(checkpoint_of(copy)), trust=False),
    ):
        with pytest.raises(CheckpointError, match=r"holds pickled code, and none of your runs .* --trust-checkpoint"):
            check()
    check_resuming(str(copy), trust=True)
    check_unpickling(str(checkpoint_of(copy)), trust=True)


def test_a_strangers_signature_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "theirs"
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "their-state"))
        mark_experiment(str(place))
    assert (place / SIGNATURE_FILE).is_file() and not wrote_experiment(str(place))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"signature": 3}', '{"signature": "0"}', "x" * 20_000])
def test_a_made_up_signature_says_nothing(experiment: Path, content: str) -> None:
    (experiment / SIGNATURE_FILE).write_text(content)
    assert not wrote_experiment(str(experiment))


@pytest.mark.parametrize(
    "open_it",
    [
        lambda place: (checkpoint_of(place) / "algorithm_state.pkl").chmod(0o666),
        lambda place: checkpoint_of(place).chmod(0o777),
        lambda place: (place / "trial").chmod(0o777),
        lambda place: place.chmod(0o777),
        lambda place: (checkpoint_of(place) / "more.pkl").symlink_to("/tmp/more.pkl"),
    ],
)
def test_what_everybody_can_change_is_nobodys(experiment, open_it) -> None:
    open_it(experiment)
    assert not wrote_experiment(str(experiment)) and not wrote_checkpoint(checkpoint_of(experiment))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_somebody_else_put_there_is_not_the_users(experiment: Path) -> None:
    os.chown(experiment / "experiment_state-1.json", 12345, 12345)
    assert not wrote_experiment(str(experiment)) and wrote_checkpoint(checkpoint_of(experiment))
    os.chown(checkpoint_of(experiment) / "algorithm_state.pkl", 12345, 12345)
    assert not wrote_checkpoint(checkpoint_of(experiment))


def test_what_a_group_can_write_is_the_users(experiment: Path) -> None:
    """As it comes of the usual umask 002."""
    for path in (experiment, *experiment.rglob("*")):
        path.chmod(0o775 if path.is_dir() else 0o664)
    assert wrote_experiment(str(experiment)) and wrote_checkpoint(checkpoint_of(experiment))


def test_a_checkpoint_put_into_an_experiment_of_ones_own_is_not_ones_own(experiment: Path) -> None:
    """Only where a trial's checkpoints lie."""
    for place in (experiment / "theirs", experiment / "trial" / "a" / "theirs"):
        shutil.copytree(checkpoint_of(experiment), place)
        assert not wrote_checkpoint(place)


def test_starting_a_run_beside_a_strangers_state_does_not_make_it_ones_own(tmp_path: Path) -> None:
    (tmp_path / "experiment_state-1.json").write_text("{}")
    mark_experiment(str(tmp_path))
    assert not wrote_experiment(str(tmp_path))


def test_where_nothing_was_started_there_is_nothing_to_refuse(tmp_path: Path) -> None:
    """An experiment of a file of several that the first run did not come to."""
    check_resuming(str(tmp_path / "none"), trust=False)
    (tmp_path / ".lock").write_text("{}")
    check_resuming(str(tmp_path), trust=False)
    (tmp_path / "tuner.pkl").write_bytes(b"x")
    with pytest.raises(CheckpointError):
        check_resuming(str(tmp_path), trust=False)


def test_the_commands_ask_before_anything_is_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``restore``, ``--resume`` and the evaluation of a stock checkpoint, each on pickles that would leave a file."""
    ran = tmp_path / "ran"

    class Runs:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.system, (f"touch {ran}",))

    place = tmp_path / "results" / "theirs"
    checkpoint = checkpoint_of(place)
    checkpoint.mkdir(parents=True)
    (checkpoint / "rllib_checkpoint.json").write_text("{}")
    state = pickle.dumps(Runs())
    for file in (checkpoint / "algorithm_state.pkl", checkpoint / "class_and_ctor_args.pkl", place / "tuner.pkl"):
        file.write_bytes(state)
    (place / "experiment_state-1.json").write_text(
        f'{{"trial_data": [], "x": {{"_type": "CLOUDPICKLE_FALLBACK", "value": "{state.hex()}"}}}}'
    )
    train = [
        "train",
        "--algo",
        "PPO",
        "--env",
        "CartPole-v1",
        "--stop",
        "{training_iteration: 1}",
        "--storage-path",
        str(place.parent),
    ]
    for arguments in (
        [*train, "--restore", str(checkpoint)],
        [*train, "--restore", str(checkpoint), "--dry-run"],
        [*train, "--experiment-name", "theirs", "--resume"],
        ["evaluate", str(checkpoint)],
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rllib_lmgame.cli.evaluate._ray", lambda args: nullcontext())
            assert main(arguments) == 2, arguments
        assert "holds pickled code, and none of your runs" in capsys.readouterr().err, arguments
    assert not ran.exists()


def test_a_signed_checkpoint_is_the_users_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "algorithm_state.pkl").write_bytes(b"state")
    assert not wrote_checkpoint(tmp_path / "checkpoint")
    write_manifest(tmp_path / "checkpoint")
    assert wrote_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "_dict_checkpoint.pkl").write_bytes(b"Tune unpickles a file of this name")
    assert not wrote_checkpoint(tmp_path / "checkpoint")


def test_a_place_on_the_network_is_signed_by_its_address(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/mine"
    mark_experiment(uri)
    assert wrote_experiment(uri) and not wrote_experiment(f"file://{tmp_path}/other")
    assert not wrote_checkpoint(f"{uri}/trial/checkpoint_000000")
    shutil.copytree(tmp_path / "mine", tmp_path / "other")
    assert not wrote_experiment(f"file://{tmp_path}/other")
