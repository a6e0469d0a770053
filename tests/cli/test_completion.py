"""``rllib completion``: what bash completes with the script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rllib_lmgame.cli.completion import script
from rllib_lmgame.cli.main import COMMANDS, main

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def text() -> str:
    return script()


def test_the_command_prints_the_script(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["tr"], ["train"]),
        (["train", "--res"], ["--restore", "--resume"]),
        (["games", "ch"], ["check"]),
        (["games", "check", "lmgame/TicT"], ["lmgame/TicTacToe-v0"]),
        (["example", "run", "quick"], ["quickstart-sokoban"]),
        (["serve", "--protocol", ""], ["openenv", "agentgym", "mrlm"]),
        (["evaluate", "random", "--env", "lmgame/TicT"], ["lmgame/TicTacToe-v0"]),
        (["data", "fetch", "gsm"], ["gsm8k"]),
        (["train", "file", "an-exp"], ["an-experiment.yaml"]),
    ],
)
def test_bash_completes(words: list[str], completed: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "an-experiment.yaml").touch()
    line = " ".join(f"'{word}'" for word in ["rllib", *words])
    ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words)}; _rllib; printf "%s\\n" "${{COMPREPLY[@]}}"'
    shell = subprocess.run([str(BASH), "--norc", "-c", f"{text}\n{ask}"], capture_output=True, text=True, cwd=tmp_path)
    assert shell.stderr == "" and shell.stdout.split() == completed


def test_every_command_is_offered_and_no_word_can_end_the_string(text: str) -> None:
    assert all(f'    "{command} "*)' in text for command in COMMANDS)
    words = [line.split('known="')[1] for line in text.splitlines() if line.startswith('    "')]
    assert all(line.count('"') == 1 and not set("$`\\") & set(line) for line in words)
