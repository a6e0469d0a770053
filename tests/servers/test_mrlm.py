"""Games by MRLM's gRPC service, asked as its RemoteEnvironment asks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from commands import Command
from served_games import TOKEN, expert, hanging

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.adapted.mrlm.protocol import METHODS, SERVICE, messages
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers.mrlm import serve_mrlm
from rllib_lmgame.servers.sessions import MOST_BYTES, SessionPool, open_games

LAKE = "lmgame/FrozenLake-v0"


class Stub:
    """The service's methods over a channel, with metadata."""

    def __init__(self, channel: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self.channel, self.metadata = channel, metadata

    async def __call__(self, method: str, **fields: Any) -> Any:
        asked, answered = METHODS[method]
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=messages()[asked].SerializeToString,
            response_deserializer=messages()[answered].FromString,
        )
        return await call(messages()[asked](**fields), timeout=60, metadata=self.metadata)

    async def step(self, session: str, text: str) -> Any:
        return await self("Step", session_id=session, action=messages()["MessageProto"](role="user", content=text))

    async def refused(self, method: str, **fields: Any) -> tuple[str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self(method, **fields)
        return error.value.code().name, error.value.details()


@asynccontextmanager
async def serving(
    *games: str, token: str | None = TOKEN, **limits: Any
) -> AsyncIterator[tuple[SessionPool, Stub, int]]:
    pool = SessionPool(await open_games({game: GameConfig(env=game, env_config={}) for game in games}), **limits)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve_mrlm(pool, token, "127.0.0.1", 0, port.set_result))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{await port}") as channel:
            yield pool, Stub(channel, (("authorization", f"Bearer {TOKEN}"),)), port.result()
    finally:
        server.cancel()
        await asyncio.wait([server])
    assert pool.active == 0


def test_the_messages_have_the_numbers_of_mrlms_proto_file() -> None:
    made = messages()
    assert made["ResetRequest"](environment_id="lake").SerializeToString() == b"\n\x04lake"
    action = made["MessageProto"](role="user", content="Up")
    assert (
        made["StepRequest"](session_id="s", action=action).SerializeToString() == b"\n\x01s\x12\x0a\n\x04user\x12\x02Up"
    )
    assert made["ResetRequest"](config={"a": "b"}).SerializeToString() == b"\x12\x06\n\x01a\x12\x01b"
    assert made["ObservationProto"](done=True).SerializeToString() == b"\x18\x01"
    assert made["HealthCheckResponse"](timestamp=5).SerializeToString() == b"\x18\x05"


def test_a_game_is_played_from_reset_to_its_end() -> None:
    async def play() -> None:
        async with serving(LAKE) as (pool, stub, _):
            assert (await stub("HealthCheck")).status == "healthy"
            (known,) = (await stub("ListEnvironments")).environments
            assert (known.environment_id, known.environment_type) == ("FrozenLake-v0", LAKE)
            begun = await stub("Reset", environment_id="FrozenLake-v0", config={"seed": "3", "split": "test"})
            roles = [message.role for message in begun.observation.messages]
            assert roles == ["system", "environment"] and begun.status == "success" and pool.active == 1
            answer = await stub.step(begun.session_id, "jump")
            assert json.loads(answer.observation.info["invalid_action"]) and answer.reward.value == pytest.approx(-0.1)
            for reply in expert(LAKE, 3, split="test", max_turns=9):
                answer = await stub.step(begun.session_id, reply)
            assert answer.observation.done and answer.reward.value == 1
            assert json.loads(answer.observation.info["success"]) is True and pool.active == 0
            assert [message.role for message in answer.observation.messages][:4] == [*roles, "assistant", "environment"]
            assert (await stub.refused("Step", session_id=begun.session_id))[0] == "NOT_FOUND"
            begun = await stub("Reset", environment_id="FrozenLake-v0")
            long = await stub.step(begun.session_id, "x" * 200_000)
            assert long.ByteSize() < 20_000, "of a reply as much is kept as games read"
            two = [await stub("Reset", environment_id="FrozenLake-v0", config={"seed": "3"}) for _ in range(2)]
            up = messages()["MessageProto"](content="Up")
            requests = [messages()["StepRequest"](session_id=each.session_id, action=up) for each in two]
            requests.insert(1, messages()["StepRequest"](session_id="gone", action=up))
            first, lost, last = (await stub("BatchStep", requests=requests)).responses
            assert first == last and first.status == "success" and not first.observation.done
            assert lost.status.startswith("NOT_FOUND: there is no session 'gone'") and lost.observation.done

    asyncio.run(play())


def asked(session: str, text: str) -> Any:
    """A request of one step."""
    return messages()["StepRequest"](session_id=session, action=messages()["MessageProto"](content=text))


async def freed(pool: SessionPool, left: int = 0) -> None:
    async with asyncio.timeout(30):
        while pool.active > left:
            await asyncio.sleep(0.01)


def test_a_client_that_is_cut_off_while_it_waits_loses_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = hanging(monkeypatch)

    async def play() -> None:
        async with serving("served_games:Hangs") as (pool, stub, port):
            for method in ("Step", "BatchStep"):
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    there = Stub(channel, stub.metadata)
                    session = (await there("Reset", environment_id="Hangs")).session_id
                    if method == "BatchStep":  # Another one's reply is there, and is never heard.
                        other = (await there("Reset", environment_id="Hangs")).session_id
                        talk = there("BatchStep", requests=[asked(other, "hello"), asked(session, "hang")])
                    else:
                        talk = there.step(session, "hang")
                    waiting = asyncio.create_task(talk)
                    assert await asyncio.to_thread(hangs.acquire, timeout=30)
                    await asyncio.sleep(0.3)
                    assert pool.active == 1 + (method == "BatchStep")
                await freed(pool)
                await asyncio.wait([waiting])

    asyncio.run(play())


def test_nonsense_costs_its_own_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        async with serving(LAKE) as (pool, stub, port):
            begun = await stub("Reset", environment_id="FrozenLake-v0")
            said = "the request is no message of MRLM's service"
            for method in METHODS.keys() - {"StreamStep"}:
                path, how = f"/{SERVICE}/{method}", {"timeout": 60, "metadata": stub.metadata}
                for sent, code in ((b"\xff" * 3, "INVALID_ARGUMENT"), (b"\n" * MOST_BYTES * 2, "RESOURCE_EXHAUSTED")):
                    with pytest.raises(grpc.aio.AioRpcError) as error:
                        await stub.channel.unary_unary(path)(sent, **how)
                    assert error.value.code().name == code
                    assert code == "RESOURCE_EXHAUSTED" or error.value.details() == said
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 64)
            async with asyncio.timeout(30):
                await reader.read()
            writer.close()
            assert (await stub.step(begun.session_id, "jump")).status == "success" and pool.active == 1

    asyncio.run(talk())
    assert not caplog.records


def test_no_seat_sees_what_another_is_shown() -> None:
    async def play() -> None:
        async with serving("lmgame/KuhnPoker-v0") as (_, stub, _):
            for seed in range(6):
                one = await stub("Reset", environment_id="KuhnPoker-v0", config={"seed": str(seed)})
                (_, card), move = one.observation.messages, json.loads(one.observation.info["legal_actions"])[0]
                two = await stub.step(one.session_id, move)
                assert two.observation.info["agent"] != one.observation.info["agent"]
                assert card.content and card.content not in str(two) and json.dumps(card.content)[1:-1] not in str(two)

    asyncio.run(play())


def test_the_command_serves_it_and_a_stock_client_needs_no_token() -> None:
    command = Command(f"serve --protocol mrlm --games lake={LAKE} --no-token --port 0")
    try:
        command.wait_for("lake at 127.0.0.1:")
        address = command.text.split(" at ")[1].strip()

        async def play() -> None:
            async with grpc.aio.insecure_channel(address) as channel:
                begun = await Stub(channel, ())("Reset", environment_id="lake")
                assert begun.session_id

        asyncio.run(play())
        os.kill(command.process.pid, signal.SIGINT)
        assert "stopped; 1 games were begun" in command.finish()
    finally:
        command.end()


def test_what_is_wrong_has_a_status_and_seats_are_taken() -> None:
    async def ask() -> None:
        async with serving(LAKE, "lmgame/TicTacToe-v0", most=1) as (pool, stub, port):
            stranger = Stub(stub.channel, ())
            assert (await stranger("HealthCheck")).status == "healthy"
            for method in ("Reset", "Step", "BatchStep", "ListEnvironments"):
                assert (await stranger.refused(method))[0] == "UNAUTHENTICATED"
            lake = {"environment_id": "FrozenLake-v0"}
            for fields, code, said in (
                ({"environment_id": "nowhere"}, "NOT_FOUND", "there is no environment 'nowhere'"),
                ({**lake, "config": {"seed": "-1"}}, "INVALID_ARGUMENT", "config.seed"),
                ({**lake, "config": {"split": "secret"}}, "INVALID_ARGUMENT", "split"),
                ({**lake, "config": {"seats": "remote,random"}}, "INVALID_ARGUMENT", "seats"),
            ):
                found, message = await stub.refused("Reset", **fields)
                assert found == code and said in message
            assert pool.active == 0
            begun = await stub("Reset", environment_id="TicTacToe-v0", config={"seats": "minimax,remote", "seed": "0"})
            assert json.loads(begun.observation.info["agent"]) == "O"
            assert (await stub.refused("Reset", **lake))[0] == "RESOURCE_EXHAUSTED"
            with pytest.raises(ConfigError, match=r"--port: cannot listen at 127\.0\.0\.1"):
                await serve_mrlm(pool, None, "127.0.0.1", port, print)

    asyncio.run(ask())


def test_a_game_that_is_lost_frees_its_place() -> None:
    async def play() -> None:
        async with serving("served_games:Hangs", most=1) as (pool, stub, _):
            for word in ("raise", "hang"):
                pool.call_limit_s = 1.0 if word == "hang" else 600.0
                begun = await stub("Reset", environment_id="Hangs")
                action = messages()["MessageProto"](role="user", content=word)
                code, said = await stub.refused("Step", session_id=begun.session_id, action=action)
                assert code == "FAILED_PRECONDITION" and "the game is lost" in said
                assert pool.active == 0
                assert (await stub.refused("Step", session_id=begun.session_id))[0] == "NOT_FOUND"

    asyncio.run(play())
