"""A checkpoint is whole or it is refused, with the file named and an earlier one offered."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rllib_lmgame.algorithms.checkpoints import manifest as checkpoints
from rllib_lmgame.algorithms.checkpoints.manifest import (
    MANIFEST,
    manifest_problem,
    move_into,
    verify_manifest,
    write_manifest,
)
from rllib_lmgame.base.errors import CheckpointError

FILES = {
    "algorithm_state.pkl": b"state" * 100,
    "hf/model.safetensors": b"\x00" * 5000,
    "hf/config.json": b"{}",
    "empty": b"",
}


def write_files(directory: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def whole(directory: Path) -> Path:
    write_manifest(write_files(directory))
    return directory


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_whole_checkpoint_is_accepted(tmp_path: Path) -> None:
    verify_manifest(whole(tmp_path / "checkpoint_000001"))
    assert {p.name for p in (tmp_path / "checkpoint_000001").iterdir()} == {
        MANIFEST,
        "algorithm_state.pkl",
        "hf",
        "empty",
    }


DAMAGE = [
    *((name, lambda path: path.write_bytes(path.read_bytes()[:-1]), "is truncated: ") for name in FILES if FILES[name]),
    *((name, flip_a_byte, "has been altered") for name in FILES if FILES[name]),
    *((name, lambda path: path.write_bytes(path.read_bytes() + b"x"), "has been altered") for name in FILES),
    *((name, lambda path: path.unlink(), "is missing") for name in FILES),
]


@pytest.mark.parametrize(("name", "damage", "said"), DAMAGE)
def test_a_damaged_file_is_named(tmp_path, name, damage, said) -> None:
    damage(whole(tmp_path) / name)
    with pytest.raises(CheckpointError) as error:
        verify_manifest(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / name} {said}")


def test_no_manifest_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        verify_manifest(write_files(tmp_path))
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        verify_manifest(tmp_path / "none")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"files": 3}',
        "\x00",
        '{"files": {"a": {}}}',
        "[" * 100_000,
        '{"files": ' + "9" * 5_000 + "}",
    ],
)
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    whole(tmp_path)
    (tmp_path / MANIFEST).write_text(content)
    problem = manifest_problem(tmp_path)
    assert problem is not None and str(tmp_path / MANIFEST) in problem


@pytest.mark.parametrize(
    "files",
    [
        {},
        [],
        {"empty": 3},
        {"empty": {}},
        {"empty": {"bytes": "0"}},
        {"empty": {"bytes": 0}},
        {"../outside": {"bytes": 6, "blake2b": "same"}},
        {"hf/../../outside": {"bytes": 6, "blake2b": "same"}},
        {"{tmp}/outside": {"bytes": 6, "blake2b": "same"}},
        {"link": {"bytes": 6, "blake2b": "same"}},
        {"folder/outside": {"bytes": 6, "blake2b": "same"}},
        {"e\x00": {"bytes": 0, "blake2b": ""}},
        {"e\ud800": {"bytes": 0, "blake2b": ""}},
        {"e" * 5000: {"bytes": 0, "blake2b": ""}},
        {"hf": {"bytes": 0, "blake2b": ""}},
    ],
    ids=lambda files: str(files)[:40].encode("ascii", "replace").decode(),
)
def test_a_manifest_that_was_made_up_is_refused(tmp_path: Path, files: dict[str, dict[str, object]]) -> None:
    """No table without files, no file outside the checkpoint, no link, nothing that ends in a stack trace."""
    (tmp_path / "outside").write_bytes(b"secret")
    place = whole(tmp_path / "checkpoint_000001")
    (place / "link").symlink_to(tmp_path / "outside")
    (place / "folder").symlink_to(tmp_path)
    same = checkpoints.file_hash(tmp_path / "outside")
    if isinstance(files, dict):
        files = {
            name.replace("{tmp}", str(tmp_path)): (
                {**entry, "blake2b": same} if isinstance(entry, dict) and entry.get("blake2b") == "same" else entry
            )
            for name, entry in files.items()
        }
    (place / MANIFEST).write_text(json.dumps({"files": files}))
    assert manifest_problem(place) is not None


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = whole(tmp_path / "checkpoint_000001")
    monkeypatch.setattr(checkpoints, "file_hash", lambda path: (place / "none").read_bytes())
    assert "none cannot be read" in str(manifest_problem(place))


# -- moving ----------------------------------------------------------------------------------------------------------


def test_moving_replaces_what_was_there(tmp_path: Path) -> None:
    target, scratch = whole(tmp_path / "target"), tmp_path / "scratch"
    (target / "hf" / "old-shard").write_bytes(b"old")
    files = {name: content for name, content in FILES.items() if name != "empty"}
    write_manifest(write_files(scratch, {**files, "empty/now-a-directory": b"x", "algorithm_state.pkl": b"new"}))
    move_into(scratch, target)
    verify_manifest(target)
    assert (target / "algorithm_state.pkl").read_bytes() == b"new"
    assert not (target / "hf" / "old-shard").exists()
    assert (target / "empty" / "now-a-directory").read_bytes() == b"x"
    assert not any(scratch.iterdir())


def test_nothing_of_the_checkpoint_before_is_left(tmp_path: Path) -> None:
    """Whoever looks for the last iterate must not find that of another run; what the user put there stays."""
    scratch, target = tmp_path / "scratch", tmp_path / "target"
    write_manifest(write_files(target, {**FILES, "hf_last/model.safetensors": b"another run's", "alone": b"x"}))
    write_files(target, {"notes/mine.txt": b"keep", "hf_last/by-hand": b"x"})
    write_manifest(write_files(scratch))
    move_into(scratch, target)
    verify_manifest(target)
    assert {path.name for path in target.iterdir()} == {*(name.split("/")[0] for name in FILES), "notes", MANIFEST}


@pytest.mark.parametrize("recorded", ["../outside", "/outside", "", "."])
def test_nothing_outside_is_removed(tmp_path: Path, recorded: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    target = write_files(tmp_path / "target")
    write_manifest(target, {})
    recorded = recorded.replace("/outside", str(outside)) if recorded.startswith("/") else recorded
    (target / MANIFEST).write_text(json.dumps({"files": {recorded: {"bytes": 1, "blake2b": ""}}}))
    move_into(whole(tmp_path / "scratch"), target)
    verify_manifest(target)
    assert outside.read_bytes() == b"mine"


@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupted_move_leaves_no_checkpoint_that_verifies(tmp_path, monkeypatch, after, existing) -> None:
    scratch, target = whole(tmp_path / "scratch"), tmp_path / "target"
    if existing:
        whole(target)
        flip_a_byte(scratch / "algorithm_state.pkl")
        write_manifest(scratch)
    else:
        target.mkdir()
    moves = 0
    replace = os.replace

    def interrupted(source: Path, destination: Path) -> None:
        nonlocal moves
        if moves == after:
            raise KeyboardInterrupt
        moves += 1
        replace(source, destination)

    monkeypatch.setattr(checkpoints.os, "replace", interrupted)
    if after < 4:
        with pytest.raises(KeyboardInterrupt):
            move_into(scratch, target)
        with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
            verify_manifest(target)
    else:
        move_into(scratch, target)
        verify_manifest(target)


def test_a_manifest_that_cannot_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_manifest(tmp_path)
    assert manifest_problem(tmp_path) is not None
