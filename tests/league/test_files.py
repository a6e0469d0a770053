"""Members on disk: carried from directory to directory as they are, damage named."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from killed import killed_everywhere
from safetensors.numpy import load_file, save_file

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.inference.weights import state_checksum
from rllib_lmgame.league.files import copy_members, members_of, read_member, remove_members
from rllib_lmgame.league.matchmaking import Member


@pytest.fixture
def members(tmp_path) -> list[Member]:
    """Twelve members in ``trial/league``."""
    made = []
    for number in range(12):
        directory = tmp_path / "trial" / "league" / f"p-{number}"
        directory.mkdir(parents=True)
        state = {"w": np.full((2, 3), number, np.float32), "b": np.arange(3, dtype=np.float32)}
        save_file(state, directory / "model.safetensors")
        (directory / "config.json").write_text("{}")
        made.append(Member(f"p-{number}", "p", number, number, state_checksum(state)))
    return made


def test_members_go_into_a_checkpoint_and_out_of_it(members: list[Member], tmp_path) -> None:
    """Also after the trial is gone and the checkpoint has been moved; what lies in the way is replaced."""
    trial, checkpoint, other = (tmp_path / name / "league" for name in ("trial", "checkpoint", "other"))
    checkpoint.mkdir(parents=True)
    copy_members(trial, checkpoint, members)
    assert (checkpoint / "p-3" / "config.json").samefile(trial / "p-3" / "config.json")
    remove_members(trial, members[:5])
    copy_members(checkpoint, trial, members)
    shutil.rmtree(trial)
    moved = checkpoint.rename(tmp_path / "moved")
    shutil.copytree(moved / "p-1", other / "p-2")  # another run's member of that name
    copy_members(moved, other, members)
    for member in members:
        bundle = read_member(other, member)
        assert (bundle.checksum, bundle.version) == (member.checksum, member.version)
        assert load_file(other / member.name / "model.safetensors")["w"][0, 0] == member.iteration
    copy_members(moved, moved, members)  # onto themselves
    with pytest.raises(CheckpointError, match="p-99 is missing"):
        copy_members(moved, other, [Member("p-99", "p", 99)])


def test_members_of_a_checkpoint_are_beside_their_list(members: list[Member], tmp_path) -> None:
    trial = tmp_path / "trial"
    assert members_of(trial) == {}
    file = trial / "league" / "league.json"
    file.write_text(json.dumps({"members": [{"name": member.name, "policy": "p"} for member in members]}))
    assert members_of(trial) == {member.name: "p" for member in members}
    for name in ("p-99", "..", "../league/p-1", "league.json", str(trial)):
        file.write_text(json.dumps({"members": [{"name": name, "policy": "p"}]}))
        with pytest.raises(CheckpointError, match=r"league\.json names '.*', and no directory beside it has that name"):
            members_of(trial)
    for damaged in ("", "[]", "{}", '{"members": [3]}', '{"members": 3}'):
        file.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"league\.json is damaged: it holds no league"):
            members_of(trial)


def test_another_snapshots_files_are_not_taken_for_a_members(members: list[Member], tmp_path) -> None:
    league = tmp_path / "trial" / "league"
    shutil.copy(league / "p-4" / "model.safetensors", league / "p-5" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"p-5 does not hold the weights of the league's member any more"):
        read_member(league, members[5])


def test_a_death_in_the_middle_of_a_copy_leaves_members_whole_or_not_there(members: list[Member], tmp_path) -> None:
    """And the next copy, which a resumed run makes, puts all there."""
    trial, resumed = tmp_path / "trial" / "league", tmp_path / "resumed" / "league"

    def prepare() -> None:
        shutil.rmtree(resumed, ignore_errors=True)
        shutil.copytree(trial / "p-1", resumed / "p-0")  # Another run's member of that name.

    deaths = 0
    for _ in killed_everywhere(prepare, lambda: copy_members(trial, resumed, members[:2])):
        assert not (resumed / "p-1").exists() or read_member(resumed, members[1])
        copy_members(trial, resumed, members[:2])
        assert all(read_member(resumed, member) for member in members[:2])
        deaths += 1
    assert deaths > 8
