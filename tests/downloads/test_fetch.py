"""Fetching data sets from a hub and other sites: whole or not at all, and on from where it broke off."""

from __future__ import annotations

import json
import shutil
import stat
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from endpoint_server import listening
from hub_server import COMMIT, HubServer, quiet, serve_bird, zipped

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.lock import locked
from rllib_lmgame.cli import main
from rllib_lmgame.downloads import table
from rllib_lmgame.downloads.fetch import fetch
from rllib_lmgame.downloads.hub import download
from rllib_lmgame.downloads.places import path_of, paths_of

GSM8K = "datasets/openai/gsm8k"
TRAIN, TEST = (f"main/{split}-00000-of-00001.parquet" for split in ("train", "test"))


@pytest.fixture
def gsm8k(hub: HubServer) -> HubServer:
    hub.repositories[GSM8K] = {TRAIN: b"t" * 5000, TEST: bytes(range(256)) * 8, "README.md": b"read me"}
    return hub


def test_a_set_comes_from_the_hub_pinned_to_a_commit(gsm8k: HubServer, tmp_path: Path) -> None:
    folder = fetch("gsm8k", report=quiet)
    assert folder == tmp_path / "data" / "gsm8k"
    assert path_of("data:gsm8k:test").read_bytes() == bytes(range(256)) * 8
    source = json.loads((folder / "SOURCE.json").read_text())
    assert (
        source["licence"] == "MIT" and source["parts"] == ["test", "train"] and list(source["files"]) == [TRAIN, TEST]
    )
    assert source["files"][TEST] == {"url": f"{gsm8k.url}/{GSM8K}/resolve/{COMMIT}/{TEST}", "bytes": 2048}
    assert not list(folder.rglob("*.part*"))
    asked = len(gsm8k.asked)
    fetch("gsm8k", report=quiet)
    assert len(gsm8k.asked) == asked, "what is here is asked for again"
    (folder / TRAIN).write_bytes(b"T")
    with pytest.raises(ConfigError, match=r"was altered: .* has 1 bytes instead of 5,000"):
        path_of("data:gsm8k:train")
    fetch("gsm8k", report=quiet)
    assert path_of("data:gsm8k:train").read_bytes() == b"t" * 5000


def test_a_part_alone_is_fetched_and_the_rest_later(gsm8k: HubServer) -> None:
    fetch("gsm8k:test", report=quiet)
    assert [each.path.rsplit("/", 1)[1][:4] for each in gsm8k.files_asked()] == ["test"]
    with pytest.raises(ConfigError, match="in part only, without train"):
        paths_of("data:gsm8k")
    fetch("gsm8k", report=quiet)
    assert [each.path.rsplit("/", 1)[1][:4] for each in gsm8k.files_asked()] == ["test", "trai"]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes is written in pieces of so many bytes."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)


@pytest.mark.usefixtures("small_chunks")
def test_a_connection_that_breaks_off_is_gone_on_with(gsm8k: HubServer) -> None:
    gsm8k.break_after = 1500
    fetch("gsm8k", report=quiet)
    assert path_of("data:gsm8k:train").read_bytes() == b"t" * 5000
    ranges = [each.headers.get("Range") for each in gsm8k.files_asked() if each.path.endswith(TRAIN)]
    assert ranges == [None, "bytes=1500-", "bytes=3000-", "bytes=4500-"]


@pytest.mark.usefixtures("small_chunks")
def test_a_later_command_goes_on_where_one_gave_up(gsm8k: HubServer) -> None:
    gsm8k.break_after = 1500
    gsm8k.breaks_left = 1
    original: Any = gsm8k.RequestHandlerClass

    class Refusing(original):
        def do_GET(self) -> None:
            if "Range" in self.headers:
                self._send(503, b"busy")
                self.close_connection = True
            else:
                super().do_GET()

    gsm8k.RequestHandlerClass = Refusing
    with pytest.raises(ConfigError, match=r"503.*; 1,500 bytes are kept, and the same command goes on"):
        fetch("gsm8k", report=quiet)
    with pytest.raises(ConfigError, match="is here in part only"):
        path_of("data:gsm8k:train")
    gsm8k.RequestHandlerClass = original
    fetch("gsm8k", report=quiet)
    assert gsm8k.files_asked()[-2].headers["Range"] == "bytes=1500-"
    assert path_of("data:gsm8k:train").read_bytes() == b"t" * 5000


def test_a_file_with_another_hash_than_the_hub_says_is_refused_and_removed(gsm8k: HubServer) -> None:
    gsm8k.listed = {"lfs": {"sha256": "0" * 64, "size": 1, "pointerSize": 1}}
    with pytest.raises(ConfigError, match=r"is not the file that is known: its SHA-256 is .*; it was removed"):
        fetch("gsm8k", report=quiet)
    with pytest.raises(ConfigError, match="in part only, without train"):
        path_of("data:gsm8k:train")


def test_a_file_with_another_size_is_refused(hub: HubServer) -> None:
    hub.repositories["datasets/AgentGym/AgentEval"] = {"wordle_test.json": b"[]"}
    hub.listed = {"size": 7}
    with pytest.raises(ConfigError, match=r"cannot fetch .*wordle_test\.json: "):
        fetch("agentgym-eval", report=quiet)


def test_a_known_hash_is_compared_whatever_the_hub_says(hub: HubServer) -> None:
    hub.repositories["datasets/HuggingFaceH4/MATH-500"] = {"test.jsonl": b"{}\n"}
    with pytest.raises(ConfigError, match="not 35dc41080a3680858b27fa7e0533d2d5"):
        fetch("math500", report=quiet)


def test_the_token_goes_to_the_hub_and_to_no_other_host(gsm8k: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with listening(HubServer()) as other:
        gsm8k.elsewhere = other
        fetch("gsm8k:test", report=quiet)
    assert {each.headers.get("Authorization") for each in gsm8k.asked} == {"Bearer hf_secret"}
    assert other.asked and all("Authorization" not in each.headers for each in other.asked)


@pytest.mark.parametrize(
    ("status", "says"), [(401, "no list of datasets/openai/gsm8k .*401.*set HF_TOKEN"), (404, "404"), (503, "503")]
)
def test_what_a_hub_refuses_is_said_in_words(gsm8k: HubServer, status: int, says: str) -> None:
    gsm8k.status = status
    with pytest.raises(ConfigError, match=says):
        fetch("gsm8k", report=quiet)


def test_a_repository_with_other_files_is_named_with_those_it_has(hub: HubServer) -> None:
    hub.repositories[GSM8K] = {TRAIN: b"t", "other.parquet": b"o"}
    with pytest.raises(ConfigError, match=r"has no main/test-.*; it has main/train.*, other\.parquet"):
        fetch("gsm8k", report=quiet)


def test_offline_nothing_is_asked(gsm8k: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set.*copy the set"):
        fetch("gsm8k", report=quiet)
    assert not gsm8k.asked


def test_a_machine_without_internet_is_told_to_copy_the_folder(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["data", "fetch", "gsm8k"]) == 2
    said = capsys.readouterr().err
    assert "http://127.0.0.1:9 gives no list" in said and "Connection refused" in said and "or copy the set" in said
    with pytest.raises(ConfigError, match=r"Connection refused.*or copy the set"):
        download("http://127.0.0.1:9/file", tmp_path / "file")


def test_a_disk_without_room_is_told_before_the_first_file(gsm8k: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 3000, 3000))
    with pytest.raises(ConfigError, match=r"needs 7 kB in .*gsm8k, where 3 kB are free; .*RLLIB_LMGAME_DATA"):
        fetch("gsm8k", report=quiet)
    assert not gsm8k.files_asked()


def test_a_second_process_is_refused(gsm8k: HubServer, tmp_path: Path) -> None:
    with locked(tmp_path / "data" / "gsm8k", "", "", ""):
        with pytest.raises(ConfigError, match=r"is being filled by another process \(process \d+"):
            fetch("gsm8k", report=quiet)
    fetch("gsm8k", report=quiet)


def test_archives_in_archives_are_unpacked_and_go(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    databases = zipped({"dev_databases/shop/shop.sqlite": b"rows", "__MACOSX/dev_databases/._shop": b"?"})
    dev = zipped({"dev_20240627/dev.json": b"[1]", "dev_20240627/dev_databases.zip": databases})
    serve_bird(hub, monkeypatch, dev, zipped({"train_databases/town/town.sqlite": b"cells"}))
    folder = fetch("bird", report=quiet)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        ".running",
        "SOURCE.json",
        "dev/dev_20240627/dev.json",
        "dev/dev_20240627/dev_databases/shop/shop.sqlite",
        "train/train_databases/town/town.sqlite",
        "train/train_with_schema.json",
    }
    assert path_of("data:bird:test").read_bytes() == b"[1]"
    asked = len(hub.asked)
    fetch("bird:test", report=quiet)
    assert len(hub.asked) == asked


def test_what_was_fetched_before_an_end_in_the_middle_is_not_fetched_again(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_bird(hub, monkeypatch, zipped({"dev.json": b"[1]"}))

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr("rllib_lmgame.downloads.fetch.unpack", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch("bird:test", report=quiet)
    assert len(hub.asked) == 1
    folder = fetch("bird:test", report=quiet)
    assert len(hub.asked) == 1 and path_of("data:bird:test").read_bytes() == b"[1]"
    assert not (folder / "dev" / "dev.zip").exists()


def test_an_archive_writes_nothing_outside_its_folder(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = zipfile.ZipInfo("dev.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    serve_bird(
        hub, monkeypatch, zipped({"../../out.json": b"x", "/out.json": b"x", "dev\\..\\out.json": b"x", "l": link})
    )
    folder = fetch("bird:test", report=quiet)
    assert all(path.is_relative_to(folder) for path in tmp_path.rglob("*out.json"))
    assert not [path for path in folder.rglob("*") if path.is_symlink()]


def test_an_archive_cut_short_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_bird(hub, monkeypatch, zipped({"dev.json": b"x" * 500})[:-30])
    with pytest.raises(ConfigError, match=r"dev\.zip is no whole ZIP archive"):
        fetch("bird:test", report=quiet)


def test_the_pieces_of_an_index_become_one_file(hub: HubServer) -> None:
    hub.repositories["datasets/PeterJinGo/wiki-18-e5-index"] = {"part_aa": b"first ", "part_ab": b"second"}
    folder = fetch("wiki18:index", report=quiet)
    assert path_of("data:wiki18:index").read_bytes() == b"first second"
    assert not (folder / "part_aa").exists()
    asked = len(hub.files_asked())
    hub.repositories["datasets/PeterJinGo/wiki-18-corpus"] = {"wiki-18.jsonl.gz": b"gz"}
    hub.repositories["intfloat/e5-base-v2"] = dict.fromkeys(table._MODEL_FILES, b"m")
    fetch("wiki18", report=quiet)
    assert len(hub.files_asked()) == asked + 1 + len(table._MODEL_FILES)
    assert path_of("data:wiki18:model") == folder / "e5-base-v2"


def test_what_a_package_carries_comes_from_it(hub: HubServer) -> None:
    fetch("humaneval", report=quiet)
    assert path_of("data:humaneval").stat().st_size == 44_877 and not hub.asked


def test_the_command_lists_sets_and_answers_misspelt_ones(gsm8k: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch", "gsm8"]) == 2
    assert "no data set is called 'gsm8'; did you mean 'gsm8k'?" in capsys.readouterr().err
    assert main(["data", "fetch", "gsm8k:test"]) == 0
    capsys.readouterr()
    assert main(["data", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "1 of 2 parts" in lines["gsm8k"] and " no " in lines["bird"] and "35 GB" in lines["bird"]
    assert set(table.SETS) <= set(lines)
    assert main(["data", "list", "gsm8k"]) == 0
    parts = [line.split() for line in capsys.readouterr().out.splitlines()[:3]]
    assert parts[1:] == [["train", "no", "main/train-*.parquet"], ["test", "yes", "main/test-*.parquet"]]
    assert main(["data", "list", "agentgym-ids"]) == 0
    assert "webarena-test" in capsys.readouterr().out
    assert main(["data", "list", "gsm9k"]) == 2


@pytest.mark.parametrize("name", table.SETS)
def test_the_table_agrees_with_itself(name: str) -> None:
    each = table.SETS[name]
    assert each.about and each.licence and each.size > 0 and each.parts
    assert {part for source in each.sources for part in source.parts} <= set(each.parts)
    for source in each.sources:
        assert source.origin.startswith(("hub:", "package:", "https://")) and set(source.sha256) <= set(source.files)
        assert all(len(digest) == 64 for digest in source.sha256.values())
    assert {part for said in each.beside.values() for part in said} <= {"", *each.parts}
    for whole, pieces in each.join.items():
        assert {whole} <= {file for files in each.parts.values() for file in files} and len(pieces) > 1


@pytest.mark.parametrize("name", ["../../out_test.json", "{tmp}/out_test.json", "SOURCE.json", "a\\..\\b_test.json"])
def test_a_hub_cannot_name_a_file_outside_of_the_sets_folder(hub: HubServer, tmp_path: Path, name: str) -> None:
    name = name.format(tmp=tmp_path)
    hub.repositories["datasets/AgentGym/AgentEval"] = {"maze_test.json": b"[]", name: b"[1]"}
    with pytest.raises(ConfigError, match=r"leads out of the set|is the set's own"):
        fetch("agentgym-eval", report=quiet)
    assert not list(tmp_path.rglob("out_test.json"))


@pytest.mark.parametrize("files", [{TRAIN: 5}, {TRAIN: {"bytes": 5000}}, {TRAIN: {"bytes": "many", "url": ""}}, 7])
def test_a_damaged_source_file_is_as_good_as_none(gsm8k: HubServer, tmp_path: Path, files: object) -> None:
    damaged = json.dumps({"name": "gsm8k", "parts": ["train", "test"], "files": files})
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    (folder / "SOURCE.json").write_text(damaged)
    fetch("gsm8k", report=quiet)
    assert path_of("data:gsm8k:test").read_bytes() == bytes(range(256)) * 8
