"""``rllib tournament`` with players that need no model: what is played, written, gone on with, and refused."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from episode_parts import sessions

from rllib_lmgame.cli import main

TIC_TAC_TOE = "lmgame/TicTacToe-v0"
PLAYERS = """
import random
import threading

class Chooses:
    def act(self, session, agent_id, observation, rng):
        return rng.choice(observation.legal_actions)

class FailsInTheMiddle(Chooses):
    def act(self, session, agent_id, observation, rng):
        if rng.random() < 0.2:
            raise ValueError("lost the thread")
        return super().act(session, agent_id, observation, rng)

class FallsSilent(Chooses):
    def act(self, session, agent_id, observation, rng):
        if len(observation.legal_actions) < 6:
            threading.Event().wait()
        return super().act(session, agent_id, observation, rng)

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Speechless:
    def act(self, session, agent_id, observation, rng):
        raise Unspeakable()
"""


@pytest.fixture
def own_players(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of players in the current directory."""
    (tmp_path / "own_players.py").write_text(PLAYERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_players", raising=False)


def played(out: Path):
    """Records by episode id."""
    records = [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]
    assert len({record["episode_id"] for record in records}) == len(records)
    return {record["episode_id"]: record for record in records}


def test_everything_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cup"
    command = ["tournament", TIC_TAC_TOE, "lmgame/KuhnPoker-v0", "--players", "random", "best=minimax", "r2=random"]
    assert main([*command, "--games", "4", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert f"{TIC_TAC_TOE}: 12 games" in told.out and "lmgame/KuhnPoker-v0: 12 games" in told.out
    assert "24 of 24 games played" in told.out and "points of the row against the column" in told.out
    assert told.out.splitlines()[2].split()[0] == "best" and not told.err
    numbers = json.loads((out / "standings.json").read_text())["standings"]
    assert [table["game"] for table in numbers] == [TIC_TAC_TOE, "lmgame/KuhnPoker-v0"]
    assert all(sum(one["wins"] + one["draws"] + one["losses"] for one in table["players"]) == 24 for table in numbers)
    with (out / "payoffs-TicTacToe-v0.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0][1] == rows[1][0] == "best" and rows[1][1] == ""
    assert float(rows[1][2]) + float(rows[2][1]) == pytest.approx(0)  # Pay-offs of a zero-sum game.
    assert [table["by"] for table in numbers] == ["wins", "return"]
    seats = [tuple(seat["module_id"] for seat in record["assignments"].values()) for record in played(out).values()]
    assert {seats.count(order) for order in seats} == {4} and len(set(seats)) == 6
    assert len(sessions(out / "games.jsonl")) == 24  # Supervised learning can read it.


def test_the_same_seed_gives_the_same_games_however_many_at_once(tmp_path: Path) -> None:
    outs = []
    for number, (seed, parallel) in enumerate([("3", "1"), ("3", "5"), ("4", "5")]):
        outs.append(tmp_path / str(number))
        command = ["tournament", TIC_TAC_TOE, "--players", "random", "r2=random", "--games", "6"]
        assert main([*command, "--seed", seed, "--parallel", parallel, "--out", str(outs[-1])]) == 0
    assert played(outs[0]) == played(outs[1]) != played(outs[2])
    standings = [(out / "standings.json").read_text() for out in outs]
    assert standings[0] == standings[1] != standings[2]


def test_a_tournament_goes_on_where_it_was_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tournament", TIC_TAC_TOE, "--players", "random", "minimax", "--games", "6", "--out"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*command, str(whole)]) == main([*command, str(cut)]) == 0
    lines = (cut / "games.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "games.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:50])
    capsys.readouterr()
    assert main([*command, str(cut)]) == 0
    assert "2 of 6 games have been played before" in capsys.readouterr().out
    assert played(cut) == played(whole)
    assert (cut / "standings.json").read_text() == (whole / "standings.json").read_text()
    assert main([*command, str(cut), "--seed", "1"]) == 2
    assert "holds another tournament: seed was 0, now it is 1" in capsys.readouterr().err
    assert main([*command[:-2], "12", "--out", str(cut)]) == 2
    assert "holds another tournament: --games was 6, now it is 12" in capsys.readouterr().err
    assert main([*command[:3], "solver", *command[4:], str(cut)]) == 2
    assert "players.random was" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["games", "players"])
def test_another_order_is_another_tournament(order, tmp_path, capsys) -> None:
    """The order says which game has which number and who sits where: results would count as those of others."""
    games, players = [TIC_TAC_TOE, "lmgame/KuhnPoker-v0"], ["random", "minimax"]
    rest = ["--games", "2", "--out", str(tmp_path / "cup")]
    assert main(["tournament", *games, "--players", *players, *rest]) == 0
    (games if order == "games" else players).reverse()
    capsys.readouterr()
    assert main(["tournament", *games, "--players", *players, *rest]) == 2
    told = capsys.readouterr()
    assert "holds another tournament: order was" in told.err and not told.out


def test_games_that_are_not_zero_sum_are_told_by_what_players_get(capsys: pytest.CaptureFixture[str]) -> None:
    """A game for one: all play the same levels."""
    assert main(["tournament", "lmgame/Sokoban-v0", "--players", "solver", "random", "--games", "3", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    (table,) = content["standings"]
    assert not table["zero_sum"] and table["games"] == 6 and content["played"] == content["planned"] == 6
    assert [player["player"] for player in table["players"]] == ["solver", "random"]
    assert table["players"][0]["rate"][0] == 1.0 and "wins" in table["players"][0]


@pytest.mark.parametrize(("game", "zero_sum"), [("bargaining", False), ("kuhn_poker", True)])
def test_a_game_is_told_as_it_is_at_its_options(game: str, zero_sum: bool, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspiel")
    command = ["tournament", "lmgame/OpenSpiel-v0", "--players", "one=random", "two=random", "--games", "4", "--json"]
    assert main([*command, "--env-config", json.dumps({"game": game})]) == 0
    (table,) = json.loads(capsys.readouterr().out)["standings"]
    assert table["zero_sum"] is zero_sum and table["games"] == 4


@pytest.mark.parametrize(
    ("game", "asked", "by"),
    [
        ("lmgame/KuhnPoker-v0", [], "return"),
        ("lmgame/KuhnPoker-v0", ["--by", "wins"], "wins"),
        (TIC_TAC_TOE, [], "wins"),
        (TIC_TAC_TOE, ["--by", "return"], "return"),
    ],
)
def test_games_with_stakes_are_ranked_by_return(
    game: str, asked: list[str], by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tournament", game, "--players", "random", "solver", "--games", "12", *asked]
    assert main([*command, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["standings"]
    assert table["by"] == by and table["zero_sum"] and (table["matrix"] == table["returns"]) is (by == "return")
    assert main(command) == 0
    head = capsys.readouterr().out.splitlines()[1].split()
    assert head[2] == "return" and "win" in head and ("rating" in head) is (by == "wins")


@pytest.mark.usefixtures("own_players")
def test_a_player_that_fails_costs_its_own_games(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cup"
    command = ["tournament", TIC_TAC_TOE, "--players", "own_players:FailsInTheMiddle", "random", "minimax"]
    assert main([*command, "--games", "10", "--seed", "2", "--out", str(out)]) == 1
    told = capsys.readouterr()
    failures = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert 5 <= len(failures) <= 20 and len(played(out)) == 30 - len(failures)
    assert all(failure["failed"] == ["own_players:FailsInTheMiddle"] for failure in failures)
    assert f"{len(failures)} because own_players:FailsInTheMiddle gave no reply" in told.out
    assert "FailsInTheMiddle: a move: ValueError: lost the thread" in told.out
    assert "the same command plays the failed games again" in told.err


@pytest.mark.usefixtures("own_players")
@pytest.mark.parametrize(
    ("player", "why"),
    [
        ("FallsSilent", "FallsSilent: a move took longer than --time-limit=1"),
        ("Speechless", "Speechless: a move: Unspeakable"),
    ],
)
def test_a_seat_that_never_answers_is_given_up(player: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tournament", TIC_TAC_TOE, "--players", f"own_players:{player}", "own_players:Chooses"]
    assert main([*command, "--games", "2", "--time-limit", "1"]) == 1
    out = capsys.readouterr().out
    assert "0 of 2 games played, 2 failed" in out and f"2 times: {why}" in out


@pytest.mark.usefixtures("own_players")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TIC_TAC_TOE, "--players", "random"], "at least two players"),
        ([TIC_TAC_TOE, "--players", "random", "\udce9=random"], "is no name of a player"),
        (
            [TIC_TAC_TOE, "--players", "random", "runs/none"],
            "no such directory: runs/none; a model of the Hugging Face",
        ),
        ([TIC_TAC_TOE, "--players", "random", "own_players:None"], "has no 'None'"),
        ([TIC_TAC_TOE, TIC_TAC_TOE, "--players", "random", "solver"], "is named twice"),
        ([TIC_TAC_TOE, "--players", "random", "solver", "--out", __file__], "cannot be written"),
        ([TIC_TAC_TOE, "--players", "random", "solver", "--temperature", "nan"], "at least 0"),
        ([TIC_TAC_TOE, "--players", "random", "openai:m@http://a..b/v1"], "label empty"),
    ],
)
def test_mistakes_are_named_before_anything_is_played(arguments, words, capsys) -> None:
    assert main(["tournament", *arguments]) == 2
    told = capsys.readouterr()
    assert words in told.err and "Traceback" not in told.err and not told.out
