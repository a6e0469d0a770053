"""``data:NAME[:PART]`` in place of a path."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.trust import is_data_set
from rllib_lmgame.downloads import places
from rllib_lmgame.envs.support.datasets import read_jsonl


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLLIB_LMGAME_DATA", str(tmp_path))
    return tmp_path


def test_sets_lie_in_the_cache_where_no_place_of_their_own_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RLLIB_LMGAME_DATA", "RLLIB_LMGAME_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert places.data_root() == tmp_path / "rllib_lmgame" / "data"
    monkeypatch.setenv("RLLIB_LMGAME_CACHE", str(tmp_path / "large"))
    assert places.data_root() == tmp_path / "large" / "data"
    monkeypatch.setenv("RLLIB_LMGAME_DATA", str(tmp_path / "sets"))
    assert places.data_root() == tmp_path / "sets"


def put(root: Path, name: str, files: dict[str, bytes], parts: tuple[str, ...]) -> None:
    """A data set as `rllib data fetch` leaves it."""
    for path, content in files.items():
        (root / name / path).parent.mkdir(parents=True, exist_ok=True)
        (root / name / path).write_bytes(content)
    about = {
        path: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for path, content in files.items()
    }
    (root / name / places.SOURCE).write_text(json.dumps({"parts": list(parts), "files": about}))


def test_a_part_is_the_path_of_its_file_and_a_path_stays_what_it_is(root: Path) -> None:
    put(root, "math500", {"test.jsonl": b'{"problem": "1 + 1", "answer": "2"}\n'}, ("test",))
    assert places.path_of("data:math500:test") == root / "math500" / "test.jsonl" == places.path_of("data:math500")
    assert places.path_of("some/file") == Path("some/file")
    assert [record["answer"] for record in read_jsonl("data:math500:test", {"problem": str})] == ["2"]


def test_a_set_that_is_not_here_names_the_command_that_fetches_it_and_its_size(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"'gsm8k' is not here; `rllib data fetch gsm8k` brings it \(3 MB\)"):
        places.path_of("data:gsm8k:test", "env_config.data")


def test_files_altered_since_are_named(root: Path) -> None:
    put(root, "math500", {"test.jsonl": b"{}\n"}, ("test",))
    (root / "math500" / "test.jsonl").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"was altered: .*test\.jsonl has 1 bytes instead of 3"):
        places.path_of("data:math500")


def test_a_set_fetched_in_part_says_what_is_missing(root: Path) -> None:
    put(root, "gsm8k", {"main/train-00000-of-00001.parquet": b"x"}, ("train",))
    assert places.path_of("data:gsm8k:train").name == "train-00000-of-00001.parquet"
    with pytest.raises(ConfigError, match=r"here in part only, without test"):
        places.path_of("data:gsm8k:test")


def test_a_publishers_split_decides_which_files_hold_the_levels_of_a_split(root: Path) -> None:
    names = {split: f"main/{split}-00000-of-00001.parquet" for split in ("train", "test")}
    put(root, "gsm8k", dict.fromkeys(names.values(), b"x"), ("train", "test"))
    found = {
        split: ([path.name.split("-")[0] for path in files.files], files.published)
        for split in ("train", "validation", "test", "all")
        for files in [places.level_files("data:gsm8k", split)]
    }
    assert found == {
        "train": (["train"], "train"),
        "validation": (["train"], "train"),
        "test": (["test"], "test"),
        "all": (["train", "test"], None),
    }
    assert places.level_files("own.jsonl", "test") == places.LevelFiles((Path("own.jsonl"),))
    with pytest.raises(ConfigError, match=r"has the test split alone.*set it to 'test' or 'all'") as error:
        places.level_files("data:gsm8k:test", "train")
    assert error.value.path == "env_config.split"


@pytest.mark.parametrize(
    ("published", "has_validation", "by_hash", "split"),
    [
        ("train", False, "train", "train"),
        ("train", False, "validation", "validation"),
        ("train", False, "test", "train"),
        ("train", True, "validation", "train"),
        ("test", False, "validation", "test"),
        (None, False, "test", "test"),
    ],
)
def test_a_hash_splits_only_what_its_publisher_did_not(
    published: str | None, has_validation: bool, by_hash: str, split: str
) -> None:
    assert places.LevelFiles((), published, has_validation).split_of(by_hash) == split


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"parts": 3, "files": {}}', '{"parts": [], "files": {"a": {}}}'])
def test_a_damaged_record_is_told_with_the_command(root: Path, content: str) -> None:
    put(root, "math500", {"test.jsonl": b"{}"}, ("test",))
    (root / "math500" / places.SOURCE).write_text(content)
    with pytest.raises(places.DataMissing, match=r"SOURCE\.json that cannot be read .*`rllib data fetch math500`"):
        places.path_of("data:math500")


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("data:gsm8k", True),
        ("data:gsm8k:test", True),
        (None, True),
        ("data:../x", False),
        ("data:gsm8k:../x", False),
        ("data:", False),
        ("data:a:b:c", False),
        ("data:https://host/x", False),
        ("/etc/passwd", False),
        ("gsm8k.jsonl", False),
        (3, False),
    ],
)
def test_a_strangers_file_may_name_a_set_and_no_path(value: object, taken: bool) -> None:
    assert is_data_set(value) is taken
