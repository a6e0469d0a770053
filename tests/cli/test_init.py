"""``rllib init``: what it writes keeps the contract, passes its own test and can be trained on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rllib_lmgame.cli.main import main


def test_a_game_passes_the_checks_its_own_test_and_a_dry_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, title = "my_game_1", "MyGame1"
    assert main(["init", "game", name]) == 0
    *_, check, own_test, play, dry_run = capsys.readouterr().out.splitlines()
    assert check == f"rllib games check {name}:{title}" and play == f"rllib play {name}:{title}"
    assert own_test == f"python -m pytest test_{name}.py"
    checked = subprocess.run([sys.executable, *own_test.split()[1:], "-q"], capture_output=True, text=True)
    assert checked.returncode == 0 and "2 passed" in checked.stdout, checked.stdout
    assert main(check.split()[1:]) == 0
    assert f"{name}:{title}: keeps the contract" in capsys.readouterr().out
    assert main(dry_run.split()[1:]) == 0
    text = capsys.readouterr().out
    assert f"# {name}: LMGamePPO, 1 trial" in text and "GuessNumber" not in text + (here / f"{name}.py").read_text()
    assert main(["init", "game", name]) == 2
    assert f"{name}.py, test_{name}.py, {name}.yaml exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["game", "json"], "there is a module 'json' already"),
        (["game", "3x"], "names no module of Python"),
        (["game", "my-game"], "names no module of Python"),
        (["game", "class"], "names no module of Python"),
        (["game", "none"], "its class would be None"),
        (["game", "text_game"], "its class would be TextGame"),
        (["game", "mine", "--dir", "/dev/null/x"], "cannot be written"),
    ],
)
def test_a_name_that_cannot_be_is_explained_and_nothing_written(
    arguments: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *arguments]) == 2
    assert words in capsys.readouterr().err and not any(here.iterdir())
