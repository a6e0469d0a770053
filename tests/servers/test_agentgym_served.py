"""Games by AgentGym's requests: a client as AgentGym writes it, and this package's own client of such servers."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from commands import Command
from served_games import TOKEN, Served, expert, running, serving

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli.main import main
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.agentgym.server import Server
from rllib_lmgame.envs.registry import make_game, make_session
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers.agentgym import agentgym_app
from rllib_lmgame.servers.served_episode import REMOTE, GameLostError, RemoteSeat
from rllib_lmgame.servers.sessions import HeldSessions, SessionPool, open_games
from tests.envs.begun import begun

LAKE, KUHN, TIC_TAC_TOE = (f"lmgame/{name}-v0" for name in ("FrozenLake", "KuhnPoker", "TicTacToe"))


class EnvClient:
    """What AgentGym's clients do, such as its TextCraftEnvClient: one session, every answer must have status 200."""

    def __init__(self, served: Served, path: str = "") -> None:
        self.served, self.path = served, path

    async def ask(self, method: str, name: str, **data: Any) -> Any:
        if method == "GET":
            query = "&".join(f"{key}={value}" for key, value in data.items())
            status, answer = await self.served.get(f"{self.path}/{name}?{query}")
        else:
            status, answer = await self.served.post(f"{self.path}/{name}", data)
        assert status == 200
        return answer

    async def create(self) -> int:
        answer = await self.ask("POST", "create", minecraft_dir="agentenv_textcraft/", commands=None, goal=None)
        assert answer["observation"]
        return int(answer["id"])


def test_a_level_is_played_from_create_to_close() -> None:
    async def play() -> None:
        async with serving(agentgym_app, LAKE, options={"split": "test"}) as served:
            client = EnvClient(served)
            assert await client.ask("GET", "") == "This is environment FrozenLake-v0."
            number = await client.create()
            assert served.pool.active == 1
            first = await client.ask("POST", "reset", id=number, data_idx=3)
            assert set(first) == {"observation", "reward", "score", "done"} and not first["done"]
            assert await client.ask("GET", "observation", id=number) == first["observation"]
            actions = await client.ask("GET", "available_actions", id=number)
            assert set(actions["available_actions"]) <= {"Up", "Down", "Left", "Right"}
            assert "frozen lake" in (await client.ask("GET", "detail", id=number))["instructions"]
            wrong = await client.ask("POST", "step", id=number, action="jump")
            assert wrong["reward"] == pytest.approx(-0.1) and "Invalid" in wrong["observation"]
            for reply in expert(LAKE, 3, split="test", max_turns=9):
                last = await client.ask("POST", "step", id=number, action=reply)
            assert last["done"] and last["reward"] == 1 and last["score"] == pytest.approx(0.9)
            assert (await client.ask("GET", "detail", id=number))["info"]["player"]["success"] is True
            assert "the game is over" in (await client.ask("POST", "step", id=number, action="Up"))["error"]
            again = await client.ask("POST", "reset", id=number, data_idx=3)
            assert again == first, "the same level, in the same session"
            assert await client.ask("POST", "close", id=number) is True and served.pool.active == 0
            assert "no such session" in (await client.ask("POST", "close", id=number))["error"]

    asyncio.run(play())


def test_what_is_wrong_is_answered_as_an_error() -> None:
    async def ask() -> None:
        games = (LAKE, "lmgame/TicTacToe-v0")
        async with serving(agentgym_app, *games, seating=None, most=2) as served:
            assert "FrozenLake-v0, TicTacToe-v0" in (await served.get("/"))[1]
            client = EnvClient(served, "/FrozenLake-v0")
            number, other = await client.create(), await client.create()
            for name, data, said in (
                ("create", {}, "all 2 sessions are taken"),
                ("create", {"goal": "a boat"}, "goal are those of the level"),
                ("step", {"id": other, "action": "Up"}, "no game is begun"),
                ("step", {"id": other, "action": 3}, "action must be text"),
                ("reset", {"id": number, "data_idx": -1}, "data_idx must be"),
                ("reset", {"id": number, "data_idx": True}, "data_idx must be"),
                ("reset", {"id": 99}, "no such session"),
                ("reset", {"id": True}, "no such session"),
                ("reset", {"id": [1]}, "no such session"),
                ("reset", {}, "no such session"),
            ):
                assert said in (await client.ask("POST", name, **data))["error"], (name, data)
            assert "no level is begun" in (await client.ask("GET", "observation", id=other))["error"]
            assert "no such session" in (await client.ask("GET", "observation", id="x"))["error"]
            for text in ("{", "[]", b"\xff", "[" * 100_000):
                status, answer = await served.post("/FrozenLake-v0/step", data=text)
                assert status == 200 and "no JSON" in answer["error"]
            assert (await served.post("/FrozenLake-v0/step", data="x" * 300_000))[0] == 413
            async with aiohttp.ClientSession() as stranger:
                for address, status in ((served.url, 401), (served.url.replace("://", f"://token:{TOKEN}@"), 200)):
                    async with stranger.post(f"{address}/FrozenLake-v0/create", json={}) as response:
                        assert response.status == status
                async with stranger.get(served.url + "/FrozenLake-v0/") as response:
                    assert response.status == 200
            for each in (number, other):
                await client.ask("POST", "close", id=each)

    asyncio.run(ask())


def test_seats_are_those_of_the_server() -> None:
    async def play() -> None:
        async with serving(agentgym_app, "lmgame/TicTacToe-v0", seating=["minimax", "remote"]) as served:
            client = EnvClient(served)
            number = await client.create()
            answer = await client.ask("POST", "reset", id=number, data_idx=0)
            while not answer["done"]:
                assert answer["agent"] == "O"
                actions = (await client.ask("GET", "available_actions", id=number))["available_actions"]
                answer = await client.ask("POST", "step", id=number, action=actions[0])
            assert list((await client.ask("GET", "detail", id=number))["info"]) == ["O"]
            await client.ask("POST", "close", id=number)

    asyncio.run(play())


def test_no_seat_sees_what_another_is_shown() -> None:
    async def play() -> None:
        async with serving(agentgym_app, "lmgame/KuhnPoker-v0") as served:
            client = EnvClient(served)
            number = await client.create()
            for level in range(6):
                one = await client.ask("POST", "reset", id=number, data_idx=level)
                move = (await client.ask("GET", "available_actions", id=number))["available_actions"][0]
                two = await client.ask("POST", "step", id=number, action=move)
                assert two["agent"] != one["agent"] and not two["done"]
                told = [two, await client.ask("GET", "observation", id=number)]
                told.append(await client.ask("GET", "detail", id=number))
                assert json.dumps(one["observation"])[1:-1] not in json.dumps(told)
            await client.ask("POST", "close", id=number)

    asyncio.run(play())


def test_who_waits_for_its_game_does_not_expire_and_who_says_nothing_does() -> None:
    async def play() -> None:
        places: HeldSessions[Any] = HeldSessions(pool := SessionPool({}, idle_s=1e6))
        held = {name: places.enter(name, lambda client: SimpleNamespace(client=client)) for name in ("busy", "idle")}
        async with held["busy"].client._busy:
            for name in held:
                places._expire(name)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert places.of("busy") is held["busy"] and places.of("idle") is None and pool.active == 1
        places._expire("busy")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert places.of("busy") is None and pool.active == 0

    asyncio.run(play())


@pytest.mark.parametrize("name", ["KuhnPoker", "IteratedPrisonersDilemma", "PublicGoods"])
def test_each_seat_earns_what_the_game_gives_it_and_a_seed_is_a_level(name: str) -> None:
    """Of a client's seats the reward is that of who replied, each is told once, at the next view; without a seed levels
    differ.
    """

    async def play() -> None:
        pool = SessionPool(await open_games({"game": GameConfig(env=f"lmgame/{name}-v0", env_config={})}))
        client = pool.enter()
        told: set[tuple[float, ...]] = set()
        for seed in range(6):
            rng, moves, session = random.Random(seed), {}, begun(make_session(f"lmgame/{name}-v0"), seed=seed)
            view = await client.reset(pool.games["game"], None, seed, None)
            assert not any(view.rewards.values())
            while not view.over:
                before = view.agent
                assert view.observation.text == session.observe(before).text
                moves[before] = rng.choice(view.observation.legal_actions)
                view = await client.reply(moves[before])
                due: Any = {}
                if {*moves} == {*session.to_act()}:
                    due, moves = session.step(moves).rewards, {}
                assert view.rewards == {agent: due.get(agent, 0.0) for agent in session.agent_ids}
                assert view.replied == before and view.reward == due.get(before, 0.0)
                told.add(tuple(view.rewards.values()))
        assert len(told) > 2
        texts = {(await client.reset(pool.games["game"], None, None, None)).observation.text for _ in range(30)}
        assert len(texts) == (3 if name == "KuhnPoker" else 1)
        await client.leave()
        pool.sessions.close()

    asyncio.run(play())


def test_one_seat_against_a_scripted_player_earns_its_result() -> None:
    """Also what several moves of others earn it before it is asked again."""
    seat = RemoteSeat("X", "X", REMOTE)
    seat.reward(1.0)
    seat.reward(2.0)
    assert seat.earned == 3.0

    async def play() -> None:
        pool = SessionPool(await open_games({"game": GameConfig(env=TIC_TAC_TOE, env_config={})}))
        client, earned = pool.enter(), 0.0
        view = await client.reset(pool.games["game"], ["remote", "minimax"], 0, None)
        while not view.over:
            view = await client.reply(view.observation.legal_actions[-1])
            earned += view.rewards["X"]
        assert earned == view.infos["X"]["result"] and {*view.rewards} == {"X"}
        await client.leave()
        pool.sessions.close()

    asyncio.run(play())


def test_who_goes_away_loses_the_game_and_who_says_nothing_the_session() -> None:
    async def play() -> None:
        async with serving(agentgym_app, "served_games:Hangs") as served:
            client = EnvClient(served)
            number = await client.create()
            await client.ask("POST", "reset", id=number)
            patient = aiohttp.ClientTimeout(total=0.2)
            with pytest.raises(TimeoutError):
                await served.post("/step", {"id": number, "action": "hang"}, timeout=patient)
            answer = await client.ask("POST", "step", id=number, action="win")
            assert "no game is begun" in answer["error"]
            served.pool.idle_s = 0.01
            await client.ask("POST", "reset", id=number)
            async with asyncio.timeout(30):
                while served.pool.active:
                    await asyncio.sleep(0.01)
            assert "no such session" in (await client.ask("POST", "step", id=number, action="win"))["error"]

    asyncio.run(play())


def test_our_client_of_textcraft_servers_plays_our_textcraft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("GAMES_TOKEN", TOKEN)
    line = "serve --protocol agentgym --games lmgame/TextCraft-v0 --port 0 --max-sessions 1"
    command = Command(f"{line} --token-file {tmp_path}/token")
    try:
        command.wait_for("TextCraft-v0 at http")
        url = command.text.split(" at ")[1].strip().replace(f"token:{TOKEN}@", "")
        options = {"url": url, "ids": "0-4", "split": "all", "retries": 0}
        with pytest.raises(
            ConfigError, match=r"opened: .* \(status 401\); env_config.token_variable names one"
        ) as without:
            make_game("agentgym:textcraft", options).check_ready()
        assert TOKEN not in str(without.value)
        options["token_variable"] = "GAMES_TOKEN"
        assert "opens sessions" in make_game("agentgym:textcraft", options).check_ready()
        own = make_session("lmgame/TextCraft-v0", {"split": "train"})
        there = make_session("agentgym:textcraft", options)
        for seed in (0, 1):
            there.reset(seed)
            for number in range(5):
                own.reset(number)
                if there.observe("player").text == own.observe("player").text:
                    break
            else:
                pytest.fail("it is no level of ours")
            result = None
            while result is None or not result.done:
                action = own.expert_action("player")
                assert action is not None
                result, mine = there.step({"player": action}), own.step({"player": action})
                assert result.done == mine.done and there.observe("player").text == own.observe("player").text
            assert result.infos["player"]["success"] and mine.infos["player"]["success"]
        there.close()
    finally:
        command.end()


def test_a_session_that_is_closed_while_it_begins_a_game_leaves_none() -> None:
    async def play() -> None:
        async with serving(agentgym_app, LAKE) as served:
            client, (game,) = served.pool.enter(), served.pool.games.values()
            await client.reset(game, None, 0, None)
            again = asyncio.create_task(client.reset(game, None, 1, None))
            await asyncio.sleep(0)  # Now it waits for the end of the first game.
            assert client.busy
            await client.leave()
            with pytest.raises(GameLostError, match="the session was closed"):
                await again
            assert served.pool.begun == 1

    asyncio.run(play())


def test_protocols_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--games", LAKE, "--protocol", "telnet"]) == 2
    assert "invalid choice: 'telnet'" in capsys.readouterr().err


def test_a_token_that_a_server_says_again_stands_in_no_message() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=500, text=f"cannot route: Authorization: {request.headers['Authorization']}")

    def application(pool: Any, token: str | None) -> web.Application:
        gateway = web.Application()
        gateway.router.add_route("*", "/{path:.*}", answer)
        return gateway

    with running(application, LAKE) as served, pytest.raises(GameError) as error:
        Server(served.url, "env_config.url", 5, 0, TOKEN).post("/create")
    assert TOKEN not in str(error.value) and "***" in str(error.value)
