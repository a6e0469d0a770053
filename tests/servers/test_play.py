"""``rllib play --web``: the games of the terminal over a WebSocket, for the page of this server alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from rllib_lmgame.cli import main
from rllib_lmgame.servers import play

XO = "lmgame/TicTacToe-v0"
GAME = "rllib_lmgame.envs.games.duels.tic_tac_toe.TicTacToe"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Function ``(talk, *arguments)`` that gives what ``talk`` returns while ``rllib play --web`` serves."""

    def run(talk: Callable[[TestServer, ClientSession], Any], *arguments: str, game: str = XO) -> Any:
        found = []

        async def served(game: play.Play, port: int, ready: Any) -> None:
            async with TestServer(play.games_app(game)) as server, ClientSession(server.make_url("/")) as http:
                found.append(await asyncio.wait_for(talk(server, http), 60))
            raise KeyboardInterrupt

        monkeypatch.setattr(play, "serve_games", served)
        assert main(["play", game, *arguments, "--web"]) == 0
        return found[0]

    return run


async def _until_asked(socket: Any) -> list[dict[str, Any]]:
    """What is shown up to the next question, or the end."""
    said: list[dict[str, Any]] = []
    while not said or said[-1]["kind"] != "ask":
        message = await socket.receive()
        if not isinstance(message.data, str):
            break
        said.append(message.json())
    return said


def _texts(said: list[dict[str, Any]]) -> str:
    return "\n".join(each["text"] for each in said if each["kind"] not in ("ask", "episode"))


def test_a_person_plays_as_in_the_terminal(serve, monkeypatch, capsys) -> None:
    typed = ["?", "nonsense", *"!!!!"]

    async def talk(server: TestServer, http: ClientSession) -> list[dict[str, Any]]:
        async with http.ws_connect("/play?later=3") as socket:
            said = await _until_asked(socket)
            for text in typed:
                if said[-1]["kind"] == "ask":
                    await socket.send_str(text)
                    said += await _until_asked(socket)
            return said

    said = serve(talk, "--players", "X=random")
    asked = [each for each in said if each["kind"] == "ask"]
    assert asked[0]["text"] == "O> " and len(asked[0]["choices"]) == 8 and asked[0]["choices"] == asked[1]["choices"]
    (episode,) = [each["episode"] for each in said if each["kind"] == "episode"]
    assert episode["seed"] == 3 and [seat["agent"] for seat in episode["seats"]] == ["X", "O"]
    own = episode["seats"][1]
    assert (episode["return"], episode["success"]) == (own["return"], own["outcome"] == "win"), "the person's"
    lines = iter(typed)
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    capsys.readouterr()
    assert main(["play", XO, "--players", "X=random", "--seed", "3"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line and line not in typed]
    assert [line for line in _texts(said).splitlines() if line] == printed


def test_a_tab_that_is_closed_or_left_ends_its_game_and_no_other(serve, monkeypatch) -> None:
    monkeypatch.setattr(play, "MOST_GAMES", 2)

    async def talk(server: TestServer, http: ClientSession) -> None:
        async with http.ws_connect("/play") as first:
            await _until_asked(first)
            async with http.ws_connect("/play") as second, http.ws_connect("/play") as third:
                assert "2 games are in play" in _texts(await _until_asked(third))
                await _until_asked(second)
                await second.send_str("quit")
                assert (await _until_asked(second))[-1]["text"] == "left"
            await first.send_str("?")
            assert "1, 2, 3" in _texts(await _until_asked(first))
            await first.send_str("x" * 2**20)
            assert await _until_asked(first) == [], "so much nobody types"
        async with asyncio.timeout(10):
            while any("whole" in repr(task) for task in asyncio.all_tasks()):
                await asyncio.sleep(0.05)

    serve(talk)


def test_a_solver_that_thinks_long_holds_no_other_tab(serve, monkeypatch) -> None:
    thought = threading.Event()
    monkeypatch.setattr("rllib_lmgame.cli.play.CALL_LIMIT_S", 1e-3)  # Is for games of others.
    monkeypatch.setattr(f"{GAME}.expert_action", lambda *_: "5" if thought.wait(5) else None)

    async def talk(server: TestServer, http: ClientSession) -> str:
        async with http.ws_connect("/play") as first, http.ws_connect("/play") as second:
            await _until_asked(first)
            await first.send_str("!")
            await _until_asked(second)
            await second.send_str("5")
            await _until_asked(second)
            thought.set()
            return _texts(await _until_asked(first))

    assert serve(talk).startswith("5\nreward"), "not: the game has no expert"


def test_a_person_with_all_seats_of_a_game_played_at_once_is_asked_for_one_after_the_other(serve) -> None:
    async def talk(server: TestServer, http: ClientSession) -> list[str]:
        async with http.ws_connect("/play") as socket:
            asked = []
            while (said := await _until_asked(socket))[-1]["kind"] == "ask":
                asked.append(said[-1]["text"])
                await socket.send_str("defect")
            return asked

    seats = ["player_0 (1 turn left)> ", "player_1 (1 turn left)> "]
    assert serve(talk, "--env-config", "{rounds: 1}", game="lmgame/IteratedPrisonersDilemma-v0") == seats


def test_only_its_own_page_may_ask(serve) -> None:
    async def talk(server: TestServer, http: ClientSession) -> None:
        async def status(origin: str, path: str = "/") -> int:
            async with http.get(path, headers={"Origin": origin}) as answer:
                return answer.status

        own = f"http://127.0.0.1:{server.port}"
        assert await status(own) == 200 and await status(own, "/play?later=-1") == 400
        assert [await status(each) for each in ("http://evil.example", "null", f"{own}0")] == [403] * 3

    serve(talk)


def test_a_game_that_fails_is_told_in_its_tab(serve, monkeypatch) -> None:
    monkeypatch.setattr(f"{GAME}.reset", lambda *_, **__: 1 / 0)

    async def talk(server: TestServer, http: ClientSession) -> str:
        async with http.ws_connect("/play") as socket:
            return _texts(await _until_asked(socket))

    assert "division by zero" in serve(talk)
