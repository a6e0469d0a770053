"""Files that commands write: whole, one writer, nothing of others touched, nothing lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.new_files import new_file
from rllib_lmgame.cli import main
from rllib_lmgame.rollouts.episode_log import EpisodeLog, read_log


def collect(out: Path | str) -> int:
    return main(["collect", "lmgame/TicTacToe-v0", "--player", "random", "--episodes", "70", "--out", str(out)])


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


def test_the_second_of_two_commands_is_refused(tmp_path, monkeypatch, capsys) -> None:
    out, second = tmp_path / "q.jsonl", []
    while_collecting(monkeypatch, lambda: second.append(collect(out)))
    assert collect(out) == 0 and second == [2]
    assert f"{out}.part exists (another command writes it, or one was killed)" in capsys.readouterr().err
    assert names(tmp_path) == ["q.jsonl"] and len(read_log(out)) == 70


def test_a_file_made_meanwhile_stays(tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "q.jsonl"
    while_collecting(monkeypatch, lambda: out.write_text("somebody's"))
    assert collect(out) == 2
    assert f"what was written is in {out}.part" in capsys.readouterr().err
    assert out.read_text() == "somebody's" and len(read_log(tmp_path / "q.jsonl.part")) == 70


def test_a_relative_path_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home := tmp_path / "home").mkdir()
    monkeypatch.chdir(home)
    while_collecting(monkeypatch, lambda: os.chdir(tmp_path))
    assert collect("q.jsonl") == 0
    assert names(home) == ["q.jsonl"] and names(tmp_path) == ["home"]


def test_a_full_disk_is_named(tmp_path, monkeypatch, capsys) -> None:
    def write(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(EpisodeLog, "write", write)
    assert collect(tmp_path / "q.jsonl") == 2
    assert capsys.readouterr().err == f"error: --out: {tmp_path}/q.jsonl cannot be written: No space left on device\n"
    assert not names(tmp_path)


def test_an_error_takes_what_was_written_with_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "new" / "q.jsonl") as file:
        file.write_text("half")
        raise KeyboardInterrupt
    assert not names(tmp_path / "new")
    (tmp_path / "q").touch()
    with pytest.raises(ConfigError, match=r"--index: .*exists"), new_file(tmp_path / "q", "--index"):
        pass
