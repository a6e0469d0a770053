"""The committed playthroughs are what the games do, which takes 4 s for all games."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rllib_lmgame.envs.checking.golden import as_text, golden_path, main, playthrough
from rllib_lmgame.envs.registry import own_games

DIRECTORY = Path(__file__).parent / "golden"
OURS = list(own_games())
LONG = {f"lmgame/{name}-v0" for name in ("LiarsDice", "MiniWoB", "SciWorld", "TextNav", "TextNavPartial")}
"""An equilibrium is worked out, a browser or Java is started."""


@pytest.mark.parametrize(
    "game", [pytest.param(game, marks=pytest.mark.slow) if game in LONG else game for game in OURS]
)
def test_playthrough_is_unchanged(game: str) -> None:
    """And its rules say what a reply holds, not how it is marked: that is the chat format's to say."""
    played = playthrough(game)
    assert as_text(played) == golden_path(game, DIRECTORY).read_text(encoding="utf-8")
    assert not re.search(r"</?(answer|think)>|\btags?\b", "\n".join(played["instructions"]))


def test_no_playthrough_is_left_over() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {golden_path(game).name for game in OURS}


def test_a_difference_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--write", "--directory", str(tmp_path), "lmgame/Sokoban-v0"]) == 0
    assert main(["--directory", str(tmp_path), "lmgame/Sokoban-v0"]) == 0
    path = golden_path("lmgame/Sokoban-v0", tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("Up", "Down", 1), encoding="utf-8")
    assert main(["--directory", str(tmp_path), "lmgame/Sokoban-v0"]) == 1
    assert str(path) in capsys.readouterr().err
