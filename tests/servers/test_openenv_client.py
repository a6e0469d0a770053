"""Environments on servers of OpenEnv as games: this package's own server, servers with every fault, and OpenEnv's."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from served_games import OPENENV, OPENENV_BEGINS, TOKEN, played_at_random, running

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import WaitedTooLong
from rllib_lmgame.envs.contract.base import GameError, InvalidAction
from rllib_lmgame.envs.games.adapted.openenv.connection import _open
from rllib_lmgame.envs.games.adapted.openenv.game import _ActionForm, _text_of
from rllib_lmgame.envs.registry import game_spec, make_game, make_session
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers import openenv

LAKE = "lmgame/FrozenLake-v0"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMES_TOKEN", TOKEN)


def there(url: str, **options: Any) -> Any:
    return make_session(f"openenv:{url}", {"token_variable": "GAMES_TOKEN", "split": "all", "retries": 0, **options})


def test_a_game_played_over_the_wire_is_the_game_that_is_played_here() -> None:
    own = make_session(LAKE, {"split": "train"})
    with running(openenv.openenv_app, LAKE) as served:
        session = there(served.url)
        for seed in (5, 6):
            own.reset(seed)
            session.reset(seed)
            seen = session.observe("player")
            assert seen.text == f"{own.instructions}\n\n{own.observe('player').text}"
            mine, result = None, None
            while mine is None or not mine.done:
                action = "jump" if mine is None else own.expert_action("player")
                mine, result = own.step({"player": action}), session.step({"player": action})
                assert result.rewards == pytest.approx(mine.rewards) and result.terminated == mine.terminated
                assert session.observe("player").text == own.observe("player").text
                assert session.observe("player").legal_actions == own.observe("player").legal_actions
            assert result is not None and result.infos["player"]["success"] is True
        session.reset(7)
        for _ in range(10):
            last = session.step({"player": "stand still"})
            if last.done:
                break
        assert last.done and not last.infos["player"]["success"]
        assert served.pool.active == 1, "one session for all episodes"
        session.close()


def test_levels_belong_to_splits_by_their_seeds_or_are_tasks_of_the_server() -> None:
    with running(openenv.openenv_app, LAKE) as served:
        levels: dict[str, set[str]] = {}
        for split in ("train", "test"):
            session = there(served.url, split=split)
            levels[split] = set()
            for seed in range(12):
                session.reset(seed)
                levels[split].add(str(session.level()))
            session.close()
        assert not levels["train"] & levels["test"]
        session, own = (
            there(served.url, split="test", levels="tasks", num_tasks=20),
            make_session(LAKE, {"split": "test"}),
        )
        for seed, index in ((3, 3), (23, 3)):
            session.reset(seed)
            own.reset(index)
            assert session.observe("player").text.endswith(own.observe("player").text)
        session.close()


def test_a_server_that_moves_has_the_same_levels_in_each_split() -> None:
    one, other = (make_game(f"openenv:http://127.0.0.1:{port}", {}) for port in (8000, 8001))
    assert [one.level_key(seed) for seed in range(9)] == [other.level_key(seed) for seed in range(9)]
    assert one.level_key(3) != one.level_key(4)


def test_a_game_that_is_cut_short_is_not_over_by_its_rules_and_others_take_seats() -> None:
    with running(openenv.openenv_app, LAKE, "lmgame/TicTacToe-v0") as served:
        session = there(f"{served.url}/FrozenLake-v0")
        session.reset(3)
        result = None
        while result is None or not result.done:
            result = session.step({"player": session.observe("player").legal_actions[0]})
        assert result.infos["player"]["success"] or result.truncated
        session.close()
        session = there(f"{served.url}/TicTacToe-v0", reset={"seats": ["minimax", "remote"]})
        session.reset(0)
        result, rewards = None, 0.0
        while result is None or not result.done:
            result = session.step({"player": session.observe("player").legal_actions[-1]})
            rewards += result.rewards["player"]
        assert result.terminated and result.infos["player"]["success"] is False and rewards <= 0
        session.close()


def test_many_games_are_played_at_once_and_leave_no_session() -> None:
    with running(openenv.openenv_app, LAKE, most=4) as served:
        game = GameConfig(env=f"openenv:{served.url}", env_config={"token_variable": "GAMES_TOKEN", "retries": 20})
        played = played_at_random(game, 24, at_once=4)
        assert len(played.episodes) == 24 and not played.failures
        assert {episode.stop_reason.value for episode in played.episodes} <= {"game_over", "max_turns"}
        assert freed(served.pool)


def freed(pool: Any) -> bool:
    """Whether all sessions end, which they do a moment after their clients have left."""
    for _ in range(1000):
        if not pool.active:
            return True
        time.sleep(0.01)
    return False


def test_pings_are_answered_between_two_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv, "PING_S", 0.1)
    with running(openenv.openenv_app, LAKE) as served:
        session = there(served.url)
        session.reset(5)
        time.sleep(0.5)
        assert session.step({"player": "Down"}).rewards == {"player": 0.0}
        session.close()


def test_the_check_before_a_run_begins_a_session_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(openenv.openenv_app, LAKE, most=1) as served:
        options = {"token_variable": "GAMES_TOKEN"}
        game = make_game(f"openenv:{served.url}", options)
        assert "begins sessions" in game.check_ready() and served.pool.begun == 1 and freed(served.pool)
        monkeypatch.setenv("GAMES_TOKEN", "another-secret-token")
        with pytest.raises(ConfigError, match=r"env_config.url: .*refuses the token") as error:
            make_game(f"openenv:{served.url}", options).check_ready()
        assert "another-secret" not in str(error.value)
    with pytest.raises(ConfigError, match=r"env_config.url: .*is not there"):
        make_game("openenv:http://127.0.0.1:9").check_ready()


FIRST = {"observation": {"text": "hello"}, "reward": None, "done": False}
SCHEMA = {"action": {"properties": {"message": {"type": "string"}}, "required": ["message"]}}


class Faulty:
    """A server in the test's loop that answers each message as ``answers`` says, one after another."""

    def __init__(self, *answers: Any, schema: Any = SCHEMA) -> None:
        self.answers, self.schema, self.asked = list(answers), schema, 0

    def __call__(self, pool: Any, token: str | None) -> web.Application:
        app = web.Application()
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/ws", self._socket)
        return app

    async def _schema(self, request: web.Request) -> web.Response:
        return web.json_response(self.schema)

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        async for message in ws:
            if json.loads(message.data)["type"] == "close":
                break
            self.asked += 1
            answer = self.answers.pop(0)
            if answer is None:
                await asyncio.sleep(60)
            if answer == "break":
                assert request.transport is not None
                request.transport.abort()
                break
            await ws.send_str(answer if isinstance(answer, str) else json.dumps(answer))
        return ws


def observed(**data: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {**FIRST, **data}}


def error(code: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "gave no answer in timeout_s=0.3"),
        ("break", "(broke off|ended the session)"),
        ("no json", "answers what is no JSON"),
        ([], "answers what is no observation"),
        ({"type": "observation", "data": {}}, "answers what is no observation"),
        ({"data": {}}, "answers what is no observation"),
        ({"type": "state", "data": FIRST}, "answers what is no observation"),
        (error("EXECUTION_ERROR", "it broke"), "answers 'EXECUTION_ERROR': 'it broke'"),
        (error("CAPACITY_REACHED"), "CAPACITY_REACHED"),
        (observed(reward="much"), "the reward is 'much'"),
        ('{"type": "observation", "data": {"observation": "x", "reward": NaN, "done": false}}', "the reward is nan"),
        (observed(reward=10**400), "the reward is 1000"),
        (observed(done=None), "`done` is None"),
    ],
)
def test_a_step_that_goes_wrong_drops_the_episode_and_the_next_begins_anew(answer: Any, said: str) -> None:
    server = Faulty(observed(), answer, observed())
    with running(server, LAKE) as served:
        session = there(served.url, timeout_s=0.3 if answer is None else 30.0)
        session.reset(0)
        with pytest.raises(GameError, match=said) as raised:
            session.step({"player": "go"})
        assert served.url in str(raised.value)
        session.reset(1)
        assert session.observe("player").text == "hello"
        session.close()


TWO = {"action": {"properties": {key: {"type": "number"} for key in "xy"}, "required": ["x", "y"]}}


def refused_value(*errors: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "Invalid message", "errors": errors}}


def test_a_value_that_the_server_refuses_is_an_invalid_reply_and_the_session_goes_on() -> None:
    wrong = refused_value({"loc": ["x"], "msg": "must be below 10"})
    blames_nobody = refused_value({"loc": ["board"], "msg": "must be text"}, {"loc": "x"}, 3)
    server = Faulty(observed(), wrong, observed(reward=1.0), blames_nobody, schema=TWO)
    with running(server, LAKE) as served, closing(there(served.url)) as session:
        session.reset(0)
        for reply in ('{"x": 11, "y": 1}', '{"x": NaN, "y": 1}'):
            result = session.step({"player": reply})
            assert result.infos["player"]["invalid_action"] and not result.done and result.rewards == {"player": 0.0}
            said = "numbers must be finite" if "NaN" in reply else "x: must be below 10"
            assert said in session.observe("player").text
        assert server.asked == 2
        assert session.step({"player": '{"x": 1, "y": 1}'}).rewards == {"player": 1.0}
        with pytest.raises(GameError, match="answers 'VALIDATION_ERROR'"):
            session.step({"player": '{"x": 1, "y": 1}'})


class Talks(Faulty):
    """Says four things at once where one is asked for."""

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        async for _ in ws:
            for _ in range(4):
                await ws.send_str(json.dumps(observed(reward=1.0)))
        return ws


def test_what_a_server_says_unasked_is_no_answer_and_is_not_kept() -> None:
    with running(Talks(), LAKE) as served, closing(there(served.url)) as session:
        session.reset(0)
        (connection,) = (one for one in _open if one.url == served.url)
        for _ in range(1000):
            if connection._reader is not None and connection._reader.done():
                break
            time.sleep(0.01)
        assert 1 <= connection._answers.qsize() <= 2
        with pytest.raises(GameError, match="said what it was not asked"):
            session.step({"player": "go"})


class Slow(Faulty):
    """Tells its schema in parts."""

    async def _schema(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        response = web.StreamResponse()
        await response.prepare(request)
        text = json.dumps(self.schema).encode()
        for part in (text[:10], text[10:]):
            await response.write(part)
            await asyncio.sleep(0.05)
        return response


def test_a_schema_that_comes_in_parts_is_read_to_its_end() -> None:
    with running(Slow(observed()), LAKE) as served, closing(there(served.url)) as session:
        session.reset(0)
        assert session.observe("player").text == "hello"


class SendsAway(Faulty):
    """Says that it has moved."""

    elsewhere = ""

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        raise web.HTTPFound(self.elsewhere)


def test_a_server_that_sends_us_elsewhere_is_not_followed() -> None:
    away, other = SendsAway(), Faulty(observed())
    with running(other, LAKE) as there_too, running(away, LAKE) as served:
        away.elsewhere = f"{there_too.url}/ws"
        with closing(there(served.url)) as session, pytest.raises(GameError, match="answers status 302"):
            session.reset(0)
        assert other.asked == 0


def test_a_server_that_is_full_or_not_there_is_asked_again_and_nobody_is_to_blame() -> None:
    server = Faulty(error("CAPACITY_REACHED"), error("CAPACITY_REACHED"), observed(), *[error("CAPACITY_REACHED")] * 2)
    with running(server, LAKE) as served:
        session = there(served.url, retries=2)
        session.reset(0)
        assert server.asked == 3
        session.close()
        with pytest.raises(WaitedTooLong, match=r"CAPACITY_REACHED.*asked 2 times"):
            there(served.url, retries=1).reset(0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(WaitedTooLong, match="is not there"):
            there(f"http://127.0.0.1:{unused.getsockname()[1]}").reset(0)


def test_an_episode_that_is_over_at_once_and_a_schema_without_actions_are_refused() -> None:
    with running(Faulty(observed(done=True)), LAKE) as served:
        with closing(there(served.url)) as session, pytest.raises(GameError, match="over before it begins"):
            session.reset(0)
    for schema in ([], {}, {"action": []}):
        with running(Faulty(observed(), schema=schema), LAKE) as served:
            with pytest.raises(GameError, match="tells no form of an action"):
                there(served.url).reset(0)


def test_replies_become_actions_as_the_schema_says() -> None:
    def form(**fields: Any) -> _ActionForm:
        required = fields.pop("required", [])
        return _ActionForm.read({"action": {"properties": fields, "required": required}}, "there")

    text, number = {"type": "string"}, {"type": "integer"}
    one = form(message=text, metadata={"type": "object"}, required=["message"])
    assert one.action("{any}") == {"message": "{any}"} and not one.said
    assert form(action_id=number).action(" 3 ") == {"action_id": 3}
    for wrong in ("three", "true", "3.5", "[" * 100_000):
        with pytest.raises(InvalidAction, match="must be one integer"):
            form(action_id=number).action(wrong)
    two = form(x=number, y=number, note=text, required=["x", "y"])
    assert two.action('{"x": 1, "y": 2}') == {"x": 1, "y": 2} and '"x"' in two.said
    for wrong, said in (("up", "JSON object"), ("[1]", "JSON object"), ('{"x": 1}', "'y'"), ('{"z": 1}', "'z'")):
        with pytest.raises(InvalidAction, match=said):
            two.action(wrong)
    assert form(tensor={"type": "array"}, required=["tensor"]).only is None
    assert form(note={"type": ["string", "null"]}, required=["note"]).only is None


def test_observations_become_texts() -> None:
    messages = [{"content": "one"}, {"content": "two"}, {"content": None}]
    assert _text_of({"messages": messages, "prompt": "rules", "done": False}) == "one\ntwo"
    assert _text_of({"echoed": "hi", "reward": 1, "metadata": {"a": 1}, "extra": None}) == "hi"
    assert _text_of({"board": "ox", "turn": 3}) == "board: ox\nturn: 3"
    assert _text_of("plain") == "plain" and _text_of([1]) == "[1]"


def test_only_what_is_new_of_a_conversation_is_shown() -> None:
    def seen(content: str) -> dict[str, Any]:
        return observed(observation={"messages": [{"sender_id": -1, "content": content, "category": "MESSAGE"}]})

    with running(
        Faulty(seen("rules\nboard"), seen("rules\nboard\n[me] go\nnew"), seen("another text")), LAKE
    ) as served:
        session = there(served.url)
        session.reset(0)
        assert session.observe("player").text == "rules\nboard"
        session.step({"player": "go"})
        assert session.observe("player").text == "[me] go\nnew"
        session.step({"player": "go"})
        assert session.observe("player").text == "another text"
        session.close()


@pytest.mark.parametrize(
    ("game", "options", "said"),
    [
        ("openenv:URL", {}, "env_config.url: 'URL' is no address of a server"),
        (
            "openenv:http://token:secret@h",
            {},
            "env_config.url: leave out what stands before `@h`; env_config.token_variable names",
        ),
        ("openenv:http://h", {"token_variable": "NO_SUCH_TOKEN"}, r"env_config.token_variable: .*\$NO_SUCH_TOKEN"),
        ("openenv:http://h", {"reset": {"seed": 1}}, "env_config.reset.seed: is the level's"),
        ("openenv:http://h", {"levels": "all"}, "env_config.levels"),
    ],
)
def test_what_cannot_be_asked_is_refused(game: str, options: dict[str, Any], said: str) -> None:
    assert game_spec(game).defaults["url"] and not game_spec(game).own
    with pytest.raises(ConfigError, match=said):
        make_game(game, options)


ENVIRONMENT = """
import sys, uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Guess(Action):
    number: int

class Told(Observation):
    told: str

class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self.secret = seed % 10
        return Told(told="guess a number below 10")

    def step(self, action, timeout_s=None, **more):
        right = action.number == self.secret
        return Told(told="right" if right else "wrong", reward=float(right), done=right)

    @property
    def state(self):
        return State()

uvicorn.run(create_app(Guessing, Guess, Told, max_concurrent_envs=2), port=int(sys.argv[1]), log_level="warning")
"""


def test_an_environment_on_openenvs_own_server_is_played(tmp_path: Path) -> None:
    pytest.importorskip("openenv")
    (tmp_path / "environment.py").write_text(OPENENV_BEGINS + ENVIRONMENT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([OPENENV or sys.executable, str(tmp_path / "environment.py"), str(port)])
    try:
        for _ in range(3000):  # It takes half a minute to import what it is made of.
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        session = make_session(f"openenv:http://127.0.0.1:{port}", {"split": "all"})
        session.reset(17)
        assert session.observe("player").text == "guess a number below 10"
        assert session.step({"player": "seven"}).infos["player"]["invalid_action"]
        assert not session.step({"player": "3"}).done and session.observe("player").text == "wrong"
        result = session.step({"player": "7"})
        assert result.terminated and result.rewards == {"player": 1.0} and result.infos["player"]["success"]
        for other in (1, 2, 3):  # Two sessions at once: those before are closed.
            session.reset(other)
            session.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("opens", [True, False])
def test_a_token_that_a_server_says_again_stands_in_no_message(opens: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        said = f"no rights for {request.headers['Authorization']}"
        if not opens or request.path != "/ws":
            return web.Response(status=500, text=said)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            await socket.send_json({"type": "error", "data": {"code": "X", "message": said}})
        return socket

    def application(pool: Any, token: str | None) -> web.Application:
        gateway = web.Application()
        gateway.router.add_route("*", "/{path:.*}", answer)
        return gateway

    with running(application, LAKE) as served, pytest.raises((ConfigError, GameError)) as error:
        there(served.url).reset(0)
    assert TOKEN not in str(error.value)
