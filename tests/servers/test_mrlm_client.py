"""Environments on servers of MRLM as games: this package's own server, and servers with every fault."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest
from served_games import TOKEN, played_at_random

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import WaitedTooLong
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.mrlm.game import new_of, read_address
from rllib_lmgame.envs.games.adapted.mrlm.protocol import METHODS, SERVICE, messages
from rllib_lmgame.envs.games.adapted.on_server import MOST_BYTES
from rllib_lmgame.envs.registry import game_spec, make_game, make_session
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers.mrlm import serve_mrlm
from rllib_lmgame.servers.sessions import SessionPool, open_games

LAKE = "lmgame/FrozenLake-v0"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMES_TOKEN", TOKEN)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):  # What leads elsewhere is not asked.
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def there(where: str, **options: Any) -> Any:
    return make_session(f"mrlm:{where}", {"token_variable": "GAMES_TOKEN", "split": "all", "retries": 0, **options})


@contextmanager
def serving(*games: str, **limits: Any) -> Iterator[tuple[SessionPool, str]]:
    """This package's server in a thread: its places, and its address."""
    begun: Future[tuple[SessionPool, int]] = Future()
    end = threading.Event()

    async def serve() -> None:
        pool = SessionPool(await open_games({game: GameConfig(env=game, env_config={}) for game in games}), **limits)
        server = asyncio.create_task(
            serve_mrlm(pool, TOKEN, "127.0.0.1", 0, lambda port: begun.set_result((pool, port)))
        )
        while not end.is_set() and not server.done():
            await asyncio.sleep(0.01)
        server.cancel()
        await asyncio.wait([server])
        assert pool.active == 0

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(asyncio.run, serve())
        try:
            while not begun.done() and not served.done():
                time.sleep(0.01)
            if not begun.done():
                served.result()
            pool, port = begun.result()
            yield pool, f"127.0.0.1:{port}"
        finally:
            end.set()
            served.result()


def test_a_game_played_over_the_wire_is_the_game_that_is_played_here() -> None:
    own = make_session(LAKE, {"split": "train"})
    with serving(LAKE) as (pool, address), closing(there(f"FrozenLake-v0@{address}")) as session:
        for seed in (5, 6):
            own.reset(seed)
            session.reset(seed)
            assert session.observe("player").text == f"{own.instructions}\n{own.observe('player').text}"
            mine, result = None, None
            while mine is None or not mine.done:
                action = "jump" if mine is None else own.expert_action("player")
                mine, result = own.step({"player": str(action)}), session.step({"player": str(action)})
                assert result.rewards == pytest.approx(mine.rewards) and result.terminated == mine.terminated
                assert session.observe("player").text == own.observe("player").text
                assert session.observe("player").legal_actions == own.observe("player").legal_actions
            assert result is not None and result.infos["player"]["success"] is True and pool.active == 0
        session.reset(7)
        for _ in range(10):
            last = session.step({"player": "stand \ud800 still"})
            if last.done:
                break
        assert last.done and not last.infos["player"]["success"]


def test_seats_are_asked_for_and_what_is_shown_is_new_to_the_seat_that_replies() -> None:
    with serving("lmgame/TicTacToe-v0") as (_, address):
        with closing(there(f"TicTacToe-v0@{address}", reset={"seats": "minimax,remote"})) as session:
            session.reset(0)
            result, rewards = None, 0.0
            while result is None or not result.done:
                result = session.step({"player": session.observe("player").legal_actions[-1]})
                rewards += result.rewards["player"]
            assert result.terminated and result.infos["player"]["success"] is False and rewards <= 0
        with closing(there(f"TicTacToe-v0@{address}")) as session:
            session.reset(0)
            rules = session.observe("player").text[:200]
            seen = []
            for _ in range(4):
                session.step({"player": session.observe("player").legal_actions[0]})
                seen.append(session.observe("player").text)
            assert rules[:50] in seen[0], "the other seat reads the rules once"
            assert not any(rules[:50] in text for text in seen[1:])


def test_many_games_are_played_at_once_and_one_that_finds_no_place_asks_again() -> None:
    with serving(LAKE, most=4) as (pool, address):
        game = GameConfig(
            env=f"mrlm:FrozenLake-v0@{address}",
            env_config={"token_variable": "GAMES_TOKEN", "retries": 20, "max_turns": 20},
        )
        played = played_at_random(game, 16, at_once=6)
        assert len(played.episodes) == 16 and not played.failures and pool.begun >= 16


def test_the_check_before_a_run_begins_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"token_variable": "GAMES_TOKEN"}
    with serving(LAKE) as (pool, address):
        game = f"mrlm:FrozenLake-v0@{address}"
        assert "lists FrozenLake-v0" in make_game(game, options).check_ready() and not pool.begun
        with pytest.raises(ConfigError, match=r"env_config.address: .* no environment 'chess'; it lists 'FrozenLake-"):
            make_game(f"mrlm:chess@{address}", options).check_ready()
        monkeypatch.setenv("GAMES_TOKEN", "another-secret-token")
        with pytest.raises(ConfigError, match=r"env_config.address: .*refuses the token") as error:
            make_game(game, options).check_ready()
        assert "another-secret" not in str(error.value)
    with pytest.raises(ConfigError, match=r"env_config.address: .*is not there"):
        make_game("mrlm:lake@127.0.0.1:9").check_ready()


def made(name: str, **fields: Any) -> Any:
    return messages()[name](**fields)


def observed(*told: tuple[str, str], **fields: Any) -> Any:
    texts = [made("MessageProto", role=role, content=text) for role, text in told]
    return made("ObservationProto", messages=texts, **fields)


def begun(*told: tuple[str, str], **fields: Any) -> Any:
    return made("ResetResponse", observation=observed(*(told or [("user", "hello")])), session_id="s", **fields)


def stepped(reward: float = 0.0, *told: tuple[str, str], **fields: Any) -> Any:
    seen = observed(*told, **fields)
    return made("StepResponse", observation=seen, reward=made("RewardProto", value=reward), status="success")


@contextmanager
def answering(*answers: Any) -> Iterator[tuple[str, list[Any]]]:
    """A server whose answers are these, one after another (bytes as they are, codes as errors, `None` never), and what
    it is asked.
    """
    left, asked, release = list(answers), [], threading.Event()

    def answer(request: bytes, context: Any) -> bytes:
        asked.append((context.invocation_metadata(), request))
        given = left.pop(0)
        if given is None:
            release.wait(60)
        if isinstance(given, tuple):
            context.abort(*given)
        return given if isinstance(given, bytes) else b"" if given is None else given.SerializeToString()

    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    handlers = {name: grpc.unary_unary_rpc_method_handler(answer) for name in METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", asked
    finally:
        release.set()
        server.stop(None).wait()


CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "gave no answer in timeout_s=0.3"),
        (b"\xff\xff\xff nonsense", "answers INTERNAL"),
        (b"\x0a" + (MOST_BYTES + 5).to_bytes(4, "little") + b"x" * MOST_BYTES, "larger than max"),
        ((CODE.NOT_FOUND, "there is no session 's'"), "answers NOT_FOUND: \"there is no session 's'\""),
        ((CODE.UNAVAILABLE, ""), "is not there"),
        ((CODE.RESOURCE_EXHAUSTED, "full"), "answers RESOURCE_EXHAUSTED"),
        ((CODE.INTERNAL, "x" * 2000 + "\x1b[2J"), "answers INTERNAL: 'xxx"),
        (made("StepResponse", status="NOT_FOUND: no session"), "answers 'NOT_FOUND: no session'"),
        (stepped(float("nan")), "the reward is nan"),
        (stepped(float("inf")), "the reward is inf"),
    ],
)
def test_a_step_that_goes_wrong_drops_the_episode_and_the_next_begins_anew(answer: Any, said: str) -> None:
    with answering(begun(), answer, begun(("user", "again"))) as (address, asked):
        with closing(there(f"e@{address}", timeout_s=0.3 if answer is None else 30.0)) as session:
            session.reset(0)
            with pytest.raises(GameError, match=said) as raised:
                session.step({"player": "go"})
            assert address in str(raised.value) and len(str(raised.value)) < 500 and "\x1b" not in str(raised.value)
            assert len(asked) == 2, "no step is sent twice"
            session.reset(1)
            assert session.observe("player").text == "again"


def test_a_lost_session_costs_only_its_own_episode() -> None:
    with serving(LAKE) as (_, address):
        one, other = (there(f"FrozenLake-v0@{address}") for _ in range(2))
        with closing(one), closing(other):
            one.reset(3)
            other.reset(4)
            one.env.connection._session = "gone"
            with pytest.raises(GameError, match=r"NOT_FOUND.*it is over, or was left too long"):
                one.step({"player": "Up"})
            assert other.step({"player": "Up"}).rewards is not None
            one.reset(5)
            assert "invalid_action" in one.step({"player": "Up"}).infos["player"]


def test_a_port_that_answers_nothing_or_speaks_something_else_has_a_clear_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with closing(there(f"e@{address}", timeout_s=0.5)) as session:
            with pytest.raises((GameError, WaitedTooLong), match=r"e at 127\.0\.0\.1:.*(gave no answer|is not there)"):
                session.reset(0)
    with socket.create_server(("127.0.0.1", 0)) as web, ThreadPoolExecutor(1) as thread:

        def speak() -> None:
            while True:
                try:
                    talk, _ = web.accept()
                except OSError:
                    return
                with talk:
                    talk.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread.submit(speak)
        with closing(there(f"e@127.0.0.1:{web.getsockname()[1]}")) as session:
            with pytest.raises(WaitedTooLong, match="is not there"):
                session.reset(0)
        web.shutdown(socket.SHUT_RDWR)


def test_a_server_that_is_full_or_not_there_is_asked_again_and_nobody_is_to_blame() -> None:
    full = (CODE.RESOURCE_EXHAUSTED, "all 2 sessions are taken")
    with answering(full, (CODE.UNAVAILABLE, "starting"), begun(), full, full) as (address, asked):
        with closing(there(f"e@{address}", retries=2)) as session:
            session.reset(0)
        assert len(asked) == 3
        with closing(there(f"e@{address}", retries=1)) as session:
            with pytest.raises(WaitedTooLong, match=r"RESOURCE_EXHAUSTED.*asked 2 times"):
                session.reset(0)


def test_what_is_asked_is_what_mrlms_client_asks_and_the_level() -> None:
    with answering(begun(), stepped(1.0, ("assistant", "go"), ("environment", "right"), done=True)) as (address, asked):
        with closing(there(f"e@{address}", reset={"difficulty": 3, "hard": True, "name": "x"})) as session:
            session.reset(9)
            result = session.step({"player": "go"})
            assert result.terminated and result.rewards == {"player": 1.0} and result.infos["player"]["success"]
            assert session.observe("player").text == "right"
    (metadata, reset), (_, step) = asked
    assert ("authorization", f"Bearer {TOKEN}") in [tuple(pair) for pair in metadata]
    request = messages()["ResetRequest"].FromString(reset)
    assert request.environment_id == "e"
    assert dict(request.config) == {"difficulty": "3", "hard": "true", "name": "x", "seed": "9"}
    action = messages()["StepRequest"].FromString(step)
    assert (action.session_id, action.action.role, action.action.content) == ("s", "assistant", "go")


def test_the_end_is_told_by_the_servers_words_or_by_the_return() -> None:
    ends: list[tuple[Any, bool, bool]] = [
        (stepped(1.0, done=True, info={"success": "False", "truncated": "true"}), False, True),
        (stepped(0.0, done=True, info={"success": "true"}), True, False),
        (stepped(0.0, done=True, info={"success": "[" * 9999, "legal_actions": "3"}), False, False),
        (stepped(0.5, done=True), True, False),
    ]
    with answering(*[each for end, *_ in ends for each in (begun(), end)]) as (address, _):
        with closing(there(f"e@{address}")) as session:
            for _, success, truncated in ends:
                session.reset(0)
                result = session.step({"player": "go"})
                assert result.infos["player"]["success"] is success and result.truncated is truncated
    over = made("ResetResponse", observation=observed(("user", "bye"), done=True), session_id="s")
    nameless = made("ResetResponse", observation=observed(("user", "hello")))
    with answering(over, nameless) as (address, _), closing(there(f"e@{address}")) as session:
        for said in ("over before it begins", "has no name"):
            with pytest.raises(GameError, match=said):
                session.reset(0)


def test_only_what_is_new_of_a_conversation_is_shown() -> None:
    first = [("system", "rules"), ("environment", "board")]
    reply = ("assistant", "go")
    assert new_of(first, [], "") == "rules\nboard"
    assert new_of([*first, reply, ("environment", "new")], [*first, reply], "go") == "new"
    assert new_of([reply, ("environment", "new")], [*first, reply], "go") == "new", "MRLM's own"
    assert new_of([("assistant", "another player"), ("user", "x")], [*first, reply], "go") == "another player\nx"
    assert new_of([], first, "go") == ""


def test_what_cannot_be_asked_is_refused() -> None:
    assert read_address("math@localhost") == ("math", "localhost:50051")
    assert read_address("a@b@[::1]:7") == ("a@b", "[::1]:7")
    for address in ("", "math", "@h", "math@", "math@h:0", "math@h:70000", "math@h:x", "math@http://h", "m@h/path"):
        with pytest.raises(ConfigError, match=r"env_config\.address: .* write ID@HOST:PORT"):
            make_game(f"mrlm:{address}")
    assert not game_spec("mrlm:math@h").own and "mrlm:ID@HOST" in game_spec("mrlm:ID@HOST").game_id
    for options, said in (
        ({"token_variable": "NO_SUCH_TOKEN"}, r"env_config.token_variable: .*\$NO_SUCH_TOKEN"),
        ({"reset": {"seed": 1}}, "env_config.reset.seed: is the level's"),
        ({"reset": {"seats": ["remote"]}}, "env_config.reset.seats: must be a text"),
    ):
        with pytest.raises(ConfigError, match=said):
            make_game("mrlm:math@h", options)
    one, other = (make_game(f"mrlm:math@127.0.0.1:{port}") for port in (8000, 8001))
    assert [one.level_key(seed) for seed in range(9)] == [other.level_key(seed) for seed in range(9)]


def test_a_token_that_a_server_says_again_stands_in_no_message() -> None:
    class Gateway(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            said = f"bad {dict(details.invocation_metadata)['authorization']}"
            return grpc.unary_unary_rpc_method_handler(
                lambda _, call: call.abort(grpc.StatusCode.PERMISSION_DENIED, said)
            )

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Gateway(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises((ConfigError, GameError)) as error:
            there(f"x@127.0.0.1:{port}").reset(0)
        assert TOKEN not in str(error.value) and "***" in str(error.value)
    finally:
        server.stop(0)
