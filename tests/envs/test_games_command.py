"""``rllib games`` and ``rllib play``."""

from __future__ import annotations

import pytest

from rllib_lmgame.cli.main import main
from rllib_lmgame.envs.games import FAMILIES
from rllib_lmgame.envs.registry import games as known_games


def run(*argv: str) -> int:
    return main([*argv])


def typed(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    """Type ``lines``, then Ctrl-D."""
    waiting = iter(lines)

    def answer(prompt: str = "") -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("games", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    known = ("lmgame/", "agentgym:", "openenv:", "agent:")
    rows = [line.split()[0] for line in lines if line.startswith(known)]
    assert sorted(rows) == sorted(known_games())
    titles = [lines[number + 1] for number, line in enumerate(lines) if not line][:-1]
    assert titles[0] == "Puzzles on grids and with blocks" and len(titles) == len(set(titles)) == len(FAMILIES) + 3
    assert [line.split(":")[0] for line in lines[-5:]] == ["players", "replies", "return", "solver", "extra"]
    sokoban = next(line for line in lines if line.startswith("lmgame/Sokoban-v0"))
    assert "-1.4 to 10.7" in sokoban and " 6 " in sokoban and " yes " in sokoban


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("games", "check", "lmgame/KuhnPoker-v0", "--env-config", '{"players": 3}') == 0
    assert "keeps the contract" in capsys.readouterr().out
    assert run("games", "check", "broken_games:NoRules") == 1
    assert "broken_games:NoRules: 1 problem\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("games", "check", "lmgame/Sokoban-v0", "--env-config", "{'a': 1"), "write it like '{num_boxes: 2}'"),
        (("games", "list", "-f", "no such thing"), "no game has 'no such thing'"),
    ],
)
def test_mistakes(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    assert said in capsys.readouterr().err


def test_check_names_warnings_and_the_call_that_hangs(capsys, monkeypatch) -> None:
    assert run("games", "check", "author_games:Letters") == 0
    out = capsys.readouterr().out
    assert "- warning: author_games:Letters: it has no attribute `instructions`" in out
    assert out.endswith("author_games:Letters: keeps the contract, 2 warnings\n")
    hanging = ["author_games:Hanging", "--env-config", "{where: the constructor}"]
    assert run("games", "check", *hanging, "--call-timeout", "0.2") == 1
    assert "the constructor did not come back within 0.2 s" in capsys.readouterr().out
    assert run("games", "check", "author_games:Letters", "--timeout", "0") == 2
    assert "--timeout: must be" in capsys.readouterr().err


def test_play_to_the_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, ["?", *["!"] * 6])
    assert run("play", "lmgame/Sokoban-v0", "--seed", "5") == 0
    out = capsys.readouterr().out
    assert "success: player" in out and "the game is over" in out and "√" in out
