"""The example game of the documentation keeps the contract and can be played by its expert."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from rllib_lmgame.cli.main import main
from rllib_lmgame.imports import find_in_current_directory

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-game.md"
GAME = "guess_number:GuessNumber"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    match = re.search(r"<!-- tested: (\S+) -->\n```python\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match, "the page shows a game"
    path = tmp_path / match.group(1)
    path.write_text(match.group(2) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "guess_number", raising=False)
    return path


def test_example_passes_games_check(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["games", "check", GAME])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert printed.strip() in PAGE.read_text(encoding="utf-8"), "the page shows what is printed"


def test_checker_sees_a_fault_in_the_example(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.write_text(example.read_text(encoding="utf-8").replace("rng.randint(", "random.randint("), encoding="utf-8")
    assert main(["games", "check", GAME]) == 1
    assert "seed" in capsys.readouterr().out


def test_expert_finds_the_number_by_halving(example: Path) -> None:
    from rllib_lmgame.envs import make_session

    find_in_current_directory(GAME)
    session = make_session(GAME, {"split": "test"})
    for seed in range(50):
        session.reset(seed)
        for _ in range(7):  # 100 numbers are less than 2^7
            result = session.step({"player": str(session.expert_action("player"))})
            if result.terminated:
                break
        assert result.terminated and result.infos["player"]["success"]
    session.close()
