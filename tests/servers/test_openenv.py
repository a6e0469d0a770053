"""Games as environments of OpenEnv, spoken to as its protocol is written down, and by its own programs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import aiohttp
import pytest
from commands import Command
from served_games import OPENENV, OPENENV_BEGINS, TOKEN, Served, expert, running, serving

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import listen
from rllib_lmgame.cli.main import main
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers import openenv
from rllib_lmgame.servers.openenv import CUT_OFF_BYTES, openenv_app
from rllib_lmgame.servers.sessions import MOST_BYTES, SessionPool, open_games

LAKE = "lmgame/FrozenLake-v0"


async def said(socket: aiohttp.ClientWebSocketResponse, kind: str, **data: Any) -> Any:
    """The answer to one message."""
    await socket.send_json({"type": kind, "data": data} if kind in ("reset", "step") else {"type": kind})
    return await socket.receive_json(timeout=30)


async def refused(socket: aiohttp.ClientWebSocketResponse, kind: str, **data: Any) -> tuple[str, str]:
    answer = await said(socket, kind, **data)
    assert answer["type"] == "error", answer
    return answer["data"]["code"], answer["data"]["message"]


async def played(served: Served, path: str, replies: list[str], **reset: Any) -> list[Any]:
    """All answers of one episode."""
    async with served.http.ws_connect(served.url + path) as socket:
        answers = [(await said(socket, "reset", **reset))["data"]]
        for reply in replies:
            answers.append((await said(socket, "step", message=reply))["data"])
        return answers


def test_a_game_is_played_over_a_web_socket() -> None:
    async def play() -> None:
        async with serving(openenv_app, LAKE) as served, served.http.ws_connect(served.url + "/ws") as socket:
            assert (await said(socket, "state"))["data"]["episode_id"] is None
            first = await said(socket, "reset", seed=3, episode_id="mine", split="test", index=None, of_others=1)
            assert first["type"] == "observation" and first["data"]["done"] is False and first["data"]["reward"] == 0
            seen = first["data"]["observation"]
            assert set(seen) == {"prompt", "messages", "current_player_id", "legal_players", "info", "metadata"}
            assert "frozen lake" in seen["prompt"] and seen["legal_players"] == [0]
            [message] = seen["messages"]
            assert message == {"sender_id": -1, "category": "MESSAGE", "content": message["content"]}
            assert message["content"] == f"{seen['prompt']}\n\n{seen['info']['observation']}"
            wrong = (await said(socket, "step", message="jump"))["data"]
            assert wrong["observation"]["info"]["invalid_action"] and wrong["reward"] == pytest.approx(-0.1)
            before = message["content"]
            for reply in expert(LAKE, 3, split="test", max_turns=9):
                answer = (await said(socket, "step", message=reply, metadata={}))["data"]
            assert answer["done"] and answer["reward"] == 1 and answer["observation"]["info"]["success"] is True
            assert answer["observation"]["info"]["truncated"] is False
            assert answer["observation"]["messages"][0]["content"].startswith(f"{before}\n\n[player] jump\n\nInvalid")
            state = (await said(socket, "state"))["data"]
            assert (state["episode_id"], state["last_reward"], state["num_players"]) == ("mine", 1.0, 1)
            assert await refused(socket, "step", message="Up") == (
                "EXECUTION_ERROR",
                "the game is over; reset begins another one",
            )
            again = await said(socket, "reset", seed=3, split="test")
            assert again["data"]["observation"]["messages"] == seen["messages"], "the same level"
            await socket.send_json({"type": "close"})
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE

    asyncio.run(play())


def test_what_a_server_is_is_told_without_a_token_and_nothing_else() -> None:
    async def ask() -> None:
        async with serving(openenv_app, LAKE) as served, aiohttp.ClientSession() as stranger:
            served.http, known = stranger, served.http
            assert (await served.get("/health")) == (200, {"status": "healthy"})
            about = (await served.get("/metadata"))[1]
            assert about["name"] == "FrozenLake-v0" and about["description"]
            schema = (await served.get("/schema"))[1]
            assert schema["action"]["required"] == ["message"] and set(schema) >= {"observation", "state"}
            document = (await served.get("/openapi.json"))[1]
            assert document["info"]["version"] == "1.0.0"
            assert set(document["paths"]) == {"/health", "/metadata", "/schema", "/mcp"}
            assert (await served.post("/mcp", {}))[1]["error"]["code"] == -32601
            assert (await served.get("/ws"))[0] == 401
            for words in ("Bearer wrong", "Basic dG9rZW46d3Jvbmc=", "Basic !", "Bearer", "Bearer ä", "Basic /zr/"):
                status, text = await served.get("/ws", headers={"Authorization": words})
                assert status == 401 and "Bearer TOKEN" in text
            host, port = served.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /ws HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer \xff\r\n\r\n")
            assert b" 401 " in await reader.readline()
            writer.close()
            in_address = served.url.replace("http://", f"http://token:{TOKEN}@")
            async with stranger.ws_connect(in_address + "/ws") as socket:
                assert (await said(socket, "reset"))["type"] == "observation"
            served.http = known
            assert (await served.get("/nowhere"))[0] == 404
        async with serving(openenv_app, LAKE, token=None) as served:
            assert (await served.get("/health"))[0] == 200
            assert (await served.get("/health", headers={"Origin": "http://evil.example"}))[0] == 403
            for name, status in (("evil.example:80", 403), ("[", 403), ("localhost:1", 200), ("[::1]:1", 200)):
                assert (await served.get("/health", headers={"Host": name}))[0] == status, name

    asyncio.run(ask())


BAD = [
    ("{", "INVALID_JSON"),
    ("[" * 100_000, "INVALID_JSON"),
    ("[]", "VALIDATION_ERROR"),
    ('{"type": "fly"}', "UNKNOWN_TYPE"),
    ('{"type": {}}', "UNKNOWN_TYPE"),
    ('{"type": "reset", "data": 3}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seed": 1e999}}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seed": 1, "index": 1}}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"split": "secret"}}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seats": ["remote", "remote"]}}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seats": ["random"]}}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seats": ["os:system"]}}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seats": {"nobody": "remote"}}}', "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seats": [["remote"]]}}', "VALIDATION_ERROR"),
    ('{"type": "step"}', "VALIDATION_ERROR"),
    ('{"type": "step", "data": {"message": 3}}', "VALIDATION_ERROR"),
    ('{"type": "step", "data": {"message": "Up", "more": 1}}', "VALIDATION_ERROR"),
    ('{"type": "step", "data": {"message": "Up"}}', "EXECUTION_ERROR"),
    (json.dumps({"type": "step", "data": {"message": "x" * MOST_BYTES}}), "VALIDATION_ERROR"),
]


def test_nonsense_is_answered_with_its_code_and_the_session_goes_on() -> None:
    async def talk() -> None:
        async with serving(openenv_app, LAKE) as served:
            async with served.http.ws_connect(served.url + "/ws") as socket:
                for text, code in BAD:
                    await socket.send_str(text)
                    answer = await socket.receive_json()
                    assert answer["type"] == "error" and answer["data"]["code"] == code, (text[:80], answer)
                    assert len(json.dumps(answer)) < 2000
                for text in (b"\xff\xfe", b"{}"):
                    await socket.send_bytes(text)
                    assert (await socket.receive_json())["type"] == "error"
                await said(socket, "reset")
                odd = await said(socket, "step", message="\ud800\x00")
                assert odd["data"]["observation"]["info"]["invalid_action"]
                await socket.send_str("x" * (CUT_OFF_BYTES + 1))
                closed = await socket.receive()
                assert closed.type is aiohttp.WSMsgType.CLOSE and closed.data == 1009

    asyncio.run(talk())
    with pytest.raises(openenv.WireError, match="message: data: no solver"), openenv._said_on_the_wire():
        raise ConfigError("", "no solver")


def test_a_reset_that_is_refused_leaves_the_game_in_play_as_it_was() -> None:
    async def talk() -> None:
        async with serving(openenv_app, LAKE) as served, served.http.ws_connect(served.url + "/ws") as socket:
            first = (await said(socket, "reset", episode_id="mine"))["data"]["observation"]["messages"][0]["content"]
            assert (await refused(socket, "reset", episode_id="new", split="secret"))[0] == "VALIDATION_ERROR"
            assert (await said(socket, "state"))["data"]["episode_id"] == "mine"
            answer = (await said(socket, "step", message="jump"))["data"]["observation"]
            assert answer["messages"][0]["content"].startswith(f"{first}\n\n[player] jump")

    asyncio.run(talk())


async def deaf(port: int) -> asyncio.StreamWriter:
    """A client that says much and reads nothing, until nothing more of it is taken."""
    begun = (
        b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: MDAwMDAwMDAwMDAwMDAwMA==\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    )
    asked = ({"type": "reset", "data": {"of_others": "y" * 200}}, {"type": "step", "data": {"message": "y" * 60_000}})
    texts = [json.dumps(each).encode() for each in asked]  # The answer to a step says it again.
    frame = b"".join(b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text for text in texts)
    own = socket.create_connection(("127.0.0.1", port))
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        own.setsockopt(socket.SOL_SOCKET, buffer, 4096)
    reader, writer = await asyncio.open_connection(sock=own)
    writer.write(begun)
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    while True:
        writer.write(frame)
        try:
            async with asyncio.timeout(0.5):
                await writer.drain()
        except (TimeoutError, ConnectionError):
            return writer


def test_a_client_that_does_not_read_keeps_no_server_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv, "CLOSING_S", 0.05)

    async def play() -> None:
        pool = SessionPool(await open_games({LAKE: GameConfig(env=LAKE, env_config={})}))
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            listen(openenv.openenv_app(pool, TOKEN), "127.0.0.1", 0, port.set_result, 0.05, cancels=True)
        )
        writer = await deaf(await port)
        server.cancel()
        _, stuck = await asyncio.wait([server], timeout=20)
        writer.transport.abort()
        assert not stuck and not pool.active

    asyncio.run(play())


def test_a_client_that_does_not_read_loses_its_place() -> None:
    async def play() -> None:
        async with serving(openenv_app, LAKE, idle_s=1.0) as served:
            writer = await deaf(int(served.url.rpartition(":")[2]))
            try:
                async with asyncio.timeout(20):
                    while served.pool.active:
                        await asyncio.sleep(0.01)
            finally:
                writer.transport.abort()

    asyncio.run(play())


def test_all_sessions_at_once_play_to_their_end() -> None:
    async def play() -> None:
        replies = [expert(LAKE, seed, split="train") for seed in range(8)]
        async with serving(openenv_app, LAKE, most=64) as served:
            begun, go = 0, asyncio.Event()

            async def one(seed: int) -> float:
                nonlocal begun
                async with served.http.ws_connect(served.url + "/ws") as socket:
                    await said(socket, "reset", seed=seed)
                    begun += 1
                    if begun == 64:
                        assert served.pool.active == 64
                        async with served.http.ws_connect(served.url + "/ws") as late:
                            assert (await late.receive_json())["data"]["code"] == "CAPACITY_REACHED"
                        go.set()
                    await go.wait()
                    for reply in replies[seed]:
                        answer = await said(socket, "step", message=reply)
                    return float(answer["data"]["reward"]) * answer["data"]["done"]

            assert sum(await asyncio.gather(*(one(number % 8) for number in range(64)))) == 64

    asyncio.run(play())


CLIENTS = """
import asyncio, sys, aiohttp
async def main():
    async with aiohttp.ClientSession() as http:
        sockets = [await http.ws_connect(sys.argv[1]) for _ in range(64)]
        for socket in sockets:
            await socket.send_json({"type": "reset", "data": {}})
            await socket.receive()
        for socket in sockets[:32]:
            await socket.send_json({"type": "step", "data": {"message": "Up"}})
        print("playing", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def test_clients_that_are_killed_leave_no_session() -> None:
    async def play() -> None:
        async with serving(openenv_app, LAKE, token=None) as served:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENTS, served.url.replace("http", "ws") + "/ws", stdout=subprocess.PIPE
            )
            assert process.stdout is not None and (await process.stdout.readline()) == b"playing\n"
            assert served.pool.active == 64
            process.kill()
            await process.wait()
            async with asyncio.timeout(30):
                while served.pool.active:
                    await asyncio.sleep(0.01)
            assert not [task for task in asyncio.all_tasks() if "play_one" in repr(task)]

    asyncio.run(play())


def test_a_game_that_hangs_or_raises_costs_its_own_session_alone() -> None:
    async def play() -> None:
        async with (
            serving(openenv_app, "served_games:Hangs", call_limit_s=0.5) as served,
            served.http.ws_connect(served.url + "/ws") as other,
            served.http.ws_connect(served.url + "/ws") as socket,
        ):
            await said(other, "reset")
            await said(socket, "reset")
            hanging = asyncio.create_task(refused(socket, "step", message="hang"))
            await asyncio.sleep(0)
            assert (await said(other, "step", message="win"))["data"]["reward"] == 1
            code, message = await hanging
            assert code == "EXECUTION_ERROR" and "the game is lost (timeout): " in message and "0.5" in message
            assert (await said(socket, "reset"))["type"] == "observation", "the session goes on"
            code, message = await refused(socket, "step", message="raise")
            assert code == "EXECUTION_ERROR" and "RuntimeError: broken, see own data/x.txt or y" in message
            assert (await refused(socket, "step", message="win"))[0] == "EXECUTION_ERROR"
            served.pool.call_limit_s = 600.0
            await said(socket, "reset")
            await socket.send_json({"type": "step", "data": {"message": "hang"}})
            await said(other, "reset")
            socket._response.connection.transport.abort()  # type: ignore[union-attr]
            async with asyncio.timeout(30):
                while served.pool.active > 1:
                    await asyncio.sleep(0.01)

    asyncio.run(play())


def test_who_says_nothing_has_left() -> None:
    async def play() -> None:
        async with serving(openenv_app, LAKE) as served:
            async with served.http.ws_connect(served.url + "/ws") as socket:
                await said(socket, "reset")
                assert served.pool.active == 1
                served.pool.idle_s = 0.01
                await said(socket, "state")
                answer = await socket.receive_json()
                assert answer["data"]["code"] == "SESSION_ERROR" and "0.01 s" in answer["data"]["message"]
                assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
            async with asyncio.timeout(30):
                while served.pool.active:
                    await asyncio.sleep(0.01)

    asyncio.run(play())


def test_seats_are_taken_on_the_wire() -> None:
    async def play() -> None:
        async with (
            serving(openenv_app, "lmgame/TicTacToe-v0") as served,
            served.http.ws_connect(served.url + "/ws") as socket,
        ):
            for seats in (["minimax", "remote"], {"X": "minimax"}, {"O": "remote", "X": "solver"}):
                answer = (await said(socket, "reset", seats=seats, seed=0))["data"]
                assert answer["observation"]["current_player_id"] == 1 and answer["observation"]["info"]["agent"] == "O"
                while not answer["done"]:
                    moves = answer["observation"]["info"]["legal_actions"]
                    answer = (await said(socket, "step", message=moves[-1]))["data"]
                assert answer["observation"]["info"]["success"] is False
                assert "rewards" not in answer["observation"]["info"], "those of the other seat are its own"
            first = (await said(socket, "reset", seed=0))["data"]
            assert first["observation"]["current_player_id"] == 0
            moves = first["observation"]["info"]["legal_actions"]
            second = (await said(socket, "step", message=moves[0]))["data"]
            assert second["observation"]["current_player_id"] == 1, "the client plays both"
            assert second["observation"]["info"]["rewards"] == {"0": 0.0, "1": 0.0}

    asyncio.run(play())


def test_no_seat_sees_what_another_is_shown_or_says() -> None:
    async def play() -> None:
        games = ("lmgame/KuhnPoker-v0", "lmgame/RockPaperScissors-v0")
        async with serving(openenv_app, *games) as served:
            async with served.http.ws_connect(served.url + "/KuhnPoker-v0/ws") as socket:
                for seed in range(6):
                    one = (await said(socket, "reset", seed=seed))["data"]["observation"]
                    card = one["info"]["observation"]
                    move = one["info"]["legal_actions"][0]
                    two = await said(socket, "step", message=move)
                    shown = json.dumps(two["data"]["observation"])
                    assert json.dumps(card)[1:-1] not in shown
                    state = (await said(socket, "state"))["data"]
                    assert state["raw_state"] == {} and json.dumps(card)[1:-1] not in json.dumps(state)
            async with served.http.ws_connect(served.url + "/RockPaperScissors-v0/ws") as socket:
                begun = (await said(socket, "reset", seed=0))["data"]["observation"]
                assert begun["current_player_id"] == 0
                second = (await said(socket, "step", message="paper and a secret word"))["data"]
                assert second["observation"]["current_player_id"] == 1
                assert "secret" not in json.dumps(second) and second["reward"] == 0

    asyncio.run(play())


def test_levels_are_seeds_of_a_split_also_by_index() -> None:
    async def ask() -> None:
        async with serving(openenv_app, LAKE, "served_games:Hangs") as served:
            path = "/FrozenLake-v0/ws"
            by_index = await played(served, path, [], split="test", index=4)
            by_seed = await played(served, path, [], split="test", seed=4)
            other = await played(served, path, [], split="train", seed=4)
            shown = [each[0]["observation"]["messages"] for each in (by_index, by_seed, other)]
            assert shown[0] == shown[1] != shown[2]

    asyncio.run(ask())


def test_the_command_serves_until_it_is_interrupted() -> None:
    command = Command(f"serve --games lake={LAKE} --port 0")
    try:
        command.wait_for("lake at http")
        url = command.text.split(" at ")[1].strip()
        assert url.startswith("http://token:") and "@127.0.0.1:" in url

        async def ask() -> None:
            async with aiohttp.ClientSession() as http, http.get(url + "/metadata") as response:
                assert (await response.json())["name"] == "lake"

        asyncio.run(ask())
        os.kill(command.process.pid, signal.SIGINT)
        assert "stopped; 0 games were begun" in command.finish()
    finally:
        command.end()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0", "--no-token"], "--no-token: would let everybody in who reaches 0.0.0.0"),
        (["--token-file", "nowhere"], "--token-file: cannot be read"),
        (["--port", "70000"], "--port: must be from 0 to 65535"),
        (["--seats", "remote", "random"], f"seats: {LAKE} has 1 (player), got 2"),
        (["--seats", "nobody"], "seats.player: unknown player 'nobody'; known: remote, random"),
        (["--games", f"lake={LAKE},Lake={LAKE}"], "two games are called 'Lake'"),
        (["--games", f"ü={LAKE}"], "is no name for an address"),
    ],
)
def test_what_cannot_be_served_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    games = [] if "--games" in words else ["--games", LAKE]
    assert main(["serve", *games, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_short_token_and_a_port_in_use_are_refused(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("short\n")
    assert main(["serve", "--games", LAKE, "--token-file", str(tmp_path / "token")]) == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--games", LAKE, "--port", str(port)]) == 2
        assert main(["serve", "--policy", "hf:/nowhere", "--port", str(port)]) == 2  # Said before a model is loaded.
    first, *others = capfd.readouterr().err.splitlines()
    assert "its first line must be 8 to 4096" in first
    assert others == [f"error: --port: cannot listen at 127.0.0.1:{port}: Address already in use"] * 2


def test_openenvs_validator_passes() -> None:
    """What ``openenv validate --url`` asks; the rest of its package needs more than goes with Ray."""
    validation = pytest.importorskip("openenv.cli._validation")
    with running(openenv_app, LAKE, "lmgame/KuhnPoker-v0") as served:
        for game in ("FrozenLake-v0", "KuhnPoker-v0"):
            report = validation.validate_running_environment(f"{served.url}/{game}")
            assert report["passed"] and len(report["criteria"]) >= 5
            assert [each for each in report["criteria"] if not each["passed"]] == []


@pytest.mark.slow
def test_the_pages_client_plays_with_what_this_package_installs_and_openenvs_takes_seats() -> None:
    """And OpenEnv's command finds no fault, where it is installed with all that it asks for."""
    pytest.importorskip("openenv")
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    alone, seats, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (line,) = re.findall(r"[$] rllib (serve --games .+) --port 8000", page)
    command = Command(f"{line} --port 0")
    try:
        command.wait_for("poker at http")
        sokoban, poker = (words.split(" at ")[1] for words in command.text.splitlines())
        code = re.sub(r"http://token[^\"]+", sokoban, alone) + "assert result['done']\n"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
        client = f"with GenericEnvClient(base_url={poker!r}).sync() as env:\n" + indent(seats, "    ")
        code = f"{OPENENV_BEGINS}from openenv.core.generic_client import GenericEnvClient\n{client}"
        subprocess.run([OPENENV or sys.executable, "-c", code], check=True, timeout=120)
        if OPENENV is not None:
            asked = [str(Path(OPENENV).with_name("openenv")), "validate", "--url", f"http://{poker.partition('@')[2]}"]
            report = subprocess.run(asked, capture_output=True, text=True, timeout=120)
            assert "Verdict: PASS" in report.stdout and report.returncode == 0
    finally:
        command.end()
