"""Files that commands write: whole, one writer, nothing of others touched, nothing lost."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.new_files import new_file
from rllib_lmgame.cli import main
from rllib_lmgame.rollouts.log.episode_log import EpisodeLog, read_log

HOLDER = """
import os, signal, sys
from rllib_lmgame.base.new_files import new_file

with new_file(sys.argv[1]) as file:
    file.scratch.write_text("begun")
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def collect(out: Path | str) -> int:
    arguments = ["--player", "random", "--episodes", "70", "--out", str(out)]
    return main(["collect", "lmgame/TicTacToe-v0", *arguments])


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def while_collecting(monkeypatch: pytest.MonkeyPatch, what) -> None:
    """Do something between the first and the second time that episodes are written."""
    write = EpisodeLog.write

    def then(log: EpisodeLog, records) -> None:
        write(log, records)
        monkeypatch.setattr(EpisodeLog, "write", write)
        what()

    monkeypatch.setattr(EpisodeLog, "write", then)


def test_the_second_of_two_commands_is_refused_and_the_first_named(tmp_path, monkeypatch, capsys) -> None:
    out, second = tmp_path / "q.jsonl", []
    while_collecting(monkeypatch, lambda: second.append(collect(out)))
    assert collect(out) == 0 and second == [2]
    assert f"{out} is being written by another process (process {os.getpid()} on" in capsys.readouterr().err
    assert names(tmp_path) == ["q.jsonl"] and len(read_log(out)) == 70


def test_what_a_killed_command_had_written_is_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "q.jsonl"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        assert collect(out) == 2 and f"(process {holder.pid} on" in capsys.readouterr().err
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert collect(out) == 0 and len(read_log(out)) == 70
    left = Path(capsys.readouterr().err.rsplit(" in ", 1)[1].strip())
    assert [file.read_text() for file in left.iterdir()] == ["begun"]
    shutil.rmtree(left)
    out.unlink()
    assert collect(out) == 0 and names(tmp_path) == ["q.jsonl"]


@pytest.mark.parametrize("code", [None, errno.EPERM, errno.EACCES, errno.EXDEV], ids=lambda code: f"errno {code}")
def test_a_file_made_meanwhile_stays(code, tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "q.jsonl"
    if code is not None:

        def link(*paths: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", link)
    while_collecting(monkeypatch, lambda: out.write_text("somebody's"))
    assert collect(out) == 1
    said = capsys.readouterr()
    assert f"somebody else made {out} meanwhile" in said.err and str(tmp_path / "q-2.jsonl") in said.err
    assert names(tmp_path) == ["q-2.jsonl", "q.jsonl"]
    assert out.read_text() == "somebody's" and len(read_log(tmp_path / "q-2.jsonl")) == 70


@pytest.mark.parametrize("call", ["link", "fsync"])
def test_what_cannot_get_its_name_is_kept_where_it_lies(call, tmp_path, monkeypatch, capsys) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fails)
    assert collect(tmp_path / "q.jsonl") == 2
    said = capsys.readouterr().err
    assert "q.jsonl cannot be written: No space left on device; what was written is in " in said
    assert len(read_log(said.rsplit(" in ", 1)[1].strip())) == 70


def test_nothing_but_the_file_is_left_where_neither_links_nor_renaming_work(tmp_path, monkeypatch) -> None:
    def fails(*paths: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", fails)
    monkeypatch.setattr(Path, "replace", fails)
    assert collect(tmp_path / "q.jsonl") == 2
    (written,) = (tmp_path / names(tmp_path)[0]).glob("*/*")
    assert len(names(tmp_path)) == 1 and len(read_log(written)) == 70


def test_a_relative_path_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home := tmp_path / "home").mkdir()
    monkeypatch.chdir(home)
    while_collecting(monkeypatch, lambda: os.chdir(tmp_path))
    assert collect("q.jsonl") == 0
    assert names(home) == ["q.jsonl"] and len(read_log(home / "q.jsonl")) == 70
    assert names(tmp_path) == ["home"]


def test_a_directory_that_is_removed_meanwhile_is_an_error(tmp_path, monkeypatch, capsys) -> None:
    (home := tmp_path / "home").mkdir()
    monkeypatch.chdir(home)
    write = EpisodeLog.write

    def then(log: EpisodeLog, records) -> None:
        write(log, records)
        if len(records) < 64:
            shutil.rmtree(home)

    monkeypatch.setattr(EpisodeLog, "write", then)
    assert collect("q.jsonl") == 1
    said = capsys.readouterr()
    assert not said.out and said.err.startswith(f"error: {home}/q.jsonl could not be written: ")
    with pytest.raises(ConfigError, match="cannot be written: No such file"), new_file("q.jsonl"):
        pass


def test_files_beside_the_new_one_are_not_touched(tmp_path: Path) -> None:
    for name in ("q.jsonl.partial", "q.jsonl.tmp", ".q.jsonl"):
        (tmp_path / name).write_text("mine")
    assert collect(tmp_path / "q.jsonl") == 0
    assert names(tmp_path) == [".q.jsonl", "q.jsonl", "q.jsonl.partial", "q.jsonl.tmp"]
    assert (tmp_path / "q.jsonl.partial").read_text() == "mine"


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127])
def test_a_name_may_be_as_long_as_the_file_system_takes(name: str, tmp_path: Path) -> None:
    assert collect(tmp_path / name) == 0 and names(tmp_path) == [name]


@pytest.mark.parametrize(
    ("out", "reason"),
    [("a" * 256, "File name too long"), ("/proc/q.jsonl", "No such file or directory"), ("file/q", "not a directory")],
)
def test_a_place_that_takes_no_file_is_named(out, reason, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert collect(out) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --out: ") and reason in said and said.count("\n") == 1
    assert names(tmp_path) == ["file"]


def test_a_full_disk_is_named(tmp_path, monkeypatch, capsys) -> None:
    def write(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(EpisodeLog, "write", write)
    assert collect(tmp_path / "q.jsonl") == 2
    assert capsys.readouterr().err == f"error: --out: {tmp_path}/q.jsonl cannot be written: No space left on device\n"
    assert not names(tmp_path)


def test_an_error_takes_what_was_written_with_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "new" / "q.jsonl") as file:
        file.scratch.write_text("half")
        raise KeyboardInterrupt
    assert not names(tmp_path / "new")
