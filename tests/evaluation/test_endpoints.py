"""Models behind endpoints, against a server with every fault there is."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.endpoints.address import Address, EndpointOptions, read_address
from rllib_lmgame.endpoints.client import GIVE_UP_AFTER, ConversationTooLong, EndpointClient, EndpointError
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.evaluation.players.naming import make_players
from rllib_lmgame.evaluation.players.settings import PlayerSettings, Sections
from rllib_lmgame.evaluation.tournament.run import Outcome, Tournament, play_tournament
from rllib_lmgame.policies.chat.messages import MessageConversation
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.records import GameConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPTIONS = EndpointOptions(attempts=3, first_wait_s=0.001, longest_wait_s=0.01, max_answer_bytes=4096)
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
KEY = "sk-very-secret"
LONG_KEY = "sk-Zk3vQ9xT7mWp2LdY8Ru"


def completion(text: str | None, **message: Any) -> web.Response:
    return web.json_response({"choices": [{"message": {"content": text, **message}}], "usage": USAGE})


async def models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "good"}]})


async def served(
    handler: Handler, use: Callable[[str], Coroutine[Any, Any, Any]], list_models: Handler = models
) -> Any:
    """``await use(url)`` while a server answers chat completions with ``handler``."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_get("/v1/models", list_models)
    async with TestServer(app) as server:
        return await use(str(server.make_url("/v1")))


def ask(handler: Handler, *, limit_s: float = 30.0, times: int = 1, variable: str | None = None) -> EndpointClient:
    """Ask ``times`` times; what the last call raises is raised. The client, for its counts."""

    async def use(url: str) -> EndpointClient:
        client = EndpointClient(Address("good", url, variable), OPTIONS, limit_s, 4)
        async with client:
            for _ in range(times - 1):
                with pytest.raises(EndpointError):
                    await client.answer([{"role": "user", "content": "hi"}], max_tokens=5)
            try:
                client.said = await client.answer([{"role": "user", "content": "hi"}], max_tokens=5)  # type: ignore[attr-defined]
            except EndpointError as error:
                error.client = client  # type: ignore[attr-defined]
                raise
        return client

    return asyncio.run(served(handler, use))  # type: ignore[no-any-return]


def test_an_answer_its_tokens_and_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def good(request: web.Request) -> web.Response:
        seen.append((dict(request.headers), await request.json()))
        return completion("<answer>1</answer>", reasoning_content="well")

    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    client = ask(good, variable="MY_KEY")
    said = client.said  # type: ignore[attr-defined]
    assert (said.text, said.reasoning, said.tokens) == ("<answer>1</answer>", "well", 3)
    assert client.spent() == {"requests": 1, **USAGE}
    ((headers, body),) = seen
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {"model": "good", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@pytest.mark.parametrize("status", [429, 503])
def test_what_may_pass_is_tried_again(status: int) -> None:
    calls: list[int] = []

    async def recovers(request: web.Request) -> web.Response:
        calls.append(1)
        return completion("ok") if len(calls) == 3 else web.Response(status=status, headers={"Retry-After": "0"})

    client = ask(recovers)
    assert client.spent() == {"requests": 1, "attempts_again": 2, **USAGE}


async def never(request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return completion("late")


async def huge(request: web.Request) -> web.Response:
    return completion("x" * 10_000)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 1000)


async def drops(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def sends(body: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=body)

    return handler


def refuses(status: int, body: str = "", **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers=headers)

    return handler


@pytest.mark.parametrize(
    ("handler", "words", "again"),
    [
        (never, "gave no answer within 0.2 s; tried 3 times", 2),
        (huge, "sent more than 4,096 bytes; tried 3 times", 2),
        (endless, "sent more than 4,096 bytes", 2),
        (drops, "no answer from", 2),
        (sends("not json \x1b[31m"), r"sent no chat completion: 'not json \\\\x1b", 2),
        (sends('{"choices": []}'), "sent no chat completion", 2),
        (sends('{"choices": [{"message": {"content": 3}}]}'), "is no text", 2),
        (refuses(500, "oh no"), "HTTP 500: oh no; tried 3 times", 2),
        (refuses(401, f'{{"error": {{"message": "bad key {KEY}", "code": 1}}}}'), r"HTTP 401: 1 bad key \*\*\*", 0),
        (refuses(307, Location="http://elsewhere.invalid/"), "HTTP 307", 0),
    ],
)
def test_what_does_not_pass_is_an_error_that_says_why(
    handler: Handler, words: str, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(EndpointError, match=words) as caught:
        ask(handler, limit_s=0.2 if handler is never else 30.0, variable="MY_KEY")
    assert KEY not in str(caught.value)
    counts = caught.value.client.counts  # type: ignore[attr-defined]
    assert (counts.requests, counts.failed_requests, counts.attempts_again) == (1, 1, again)


def test_the_key_is_left_out_of_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", LONG_KEY)
    for handler in (refuses(401, json.dumps({"error": f"bad key {LONG_KEY}"})), sends(LONG_KEY)):
        with pytest.raises(EndpointError, match=r"\*\*\*") as caught:
            ask(handler, variable="MY_KEY")
        assert LONG_KEY not in str(caught.value)


def test_a_conversation_that_is_too_long_is_told_apart() -> None:
    said = "This model's maximum context length is 64 tokens."
    with pytest.raises(ConversationTooLong):
        ask(refuses(400, json.dumps({"error": {"message": said, "code": 400}})))


def test_an_endpoint_that_keeps_failing_is_given_up() -> None:
    calls: list[int] = []

    async def dead(request: web.Request) -> web.Response:
        calls.append(1)
        return web.Response(status=400)

    with pytest.raises(EndpointError, match=f"given up after {GIVE_UP_AFTER} requests in a row"):
        ask(dead, times=GIVE_UP_AFTER + 3)
    assert len(calls) == GIVE_UP_AFTER


def test_addresses() -> None:
    assert read_address("openai:a/b:7@http://h:1/v1/") == Address("a/b:7", "http://h:1/v1", None)
    assert read_address("openai:m@https://api.openai.com/v1").variable == "OPENAI_API_KEY"
    # The key that everybody has set goes to nobody else, nor unencrypted.
    assert read_address("openai:m@https://api.openai.com.evil.org/v1").variable is None
    assert read_address("openai:m@http://api.openai.com/v1").variable is None
    assert read_address("openai:m@https://h/v1#MY_KEY").variable == "MY_KEY"
    for wrong in ("m", "@http://h/v1", "m@ftp://h", "m@http://u:p@h/v1", "m@http://h?a"):
        with pytest.raises(ConfigError):
            read_address(f"openai:{wrong}")
    with pytest.raises(ConfigError, match=r"\$NOT_SET_ANYWHERE, which holds none"):
        read_address("openai:m@https://h/v1#NOT_SET_ANYWHERE").key()


def tournament(
    url: str, model: str = "good", limit_s: float = 30.0, **language_model: Any
) -> Coroutine[Any, Any, Outcome]:
    endpoint, talk = {"attempts": 2, "first_wait_s": 0.001}, {"max_tokens_per_turn": 20, **language_model}
    sections = build(Sections, {"endpoint": endpoint, "language_model": talk}, "--config")
    settings = PlayerSettings(time_limit_s=limit_s, at_once=4, sections=sections)
    players = make_players([f"far=openai:{model}@{url}", "random"], settings)
    return play_tournament(
        Tournament(
            (GameConfig(env="lmgame/TicTacToe-v0", env_config={"show_legal_actions": True}),), players, 4, at_once=4
        )
    )


def first_legal(body: dict[str, Any]) -> str:
    """The first of the legal actions of the last observation."""
    said = body["messages"][-1]["content"]
    return str(said.rsplit("Legal actions: ", 1)[1].split(",")[0].split("\n")[0])


async def plays(request: web.Request) -> web.Response:
    return completion(f"<answer>{first_legal(await request.json())}</answer>")


def test_a_model_behind_an_endpoint_plays_a_tournament() -> None:
    bodies: list[dict[str, Any]] = []

    async def noted(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return await plays(request)

    outcome = asyncio.run(served(noted, tournament))
    assert len(outcome.results[0]) == 4 and not outcome.failures
    rules = bodies[-1]["messages"][0]
    assert rules["role"] == "system" and "Tic" in rules["content"]
    assert all(body["max_tokens"] == 20 and body["temperature"] == 1.0 for body in bodies)
    assert "Write your reply between tags: <answer>your reply</answer>." in bodies[0]["messages"][-1]["content"]
    roles = [message["role"] for message in max(bodies, key=lambda body: len(body["messages"]))["messages"]]
    assert roles[:4] == ["system", "user", "assistant", "user"]
    assert len({body["seed"] for body in bodies}) == len(bodies)


def test_an_endpoint_that_fails_now_and_then_costs_those_games_alone() -> None:
    calls: list[int] = []

    async def shaky(request: web.Request) -> web.Response:
        body = await request.json()
        calls.append(1)
        if len(body["messages"]) == 4 and body["seed"] % 2:
            return web.Response(status=500, text="overloaded")
        return completion(f"<answer>{first_legal(body)}</answer>")

    outcome = asyncio.run(served(shaky, tournament))
    assert len(outcome.results[0]) + len(outcome.failures) == 4
    assert {tuple(failure["failed"]) for failure in outcome.failures} == {("far",)}
    assert all(re.match(r"far: http.* HTTP 500: overloaded", failure["message"]) for failure in outcome.failures)


def test_who_has_no_tokens_left_forfeits() -> None:
    outcome = asyncio.run(served(plays, lambda url: tournament(url, max_tokens_per_episode=5)))
    assert {seat.outcome for result in outcome.results[0] for seat in result.seats if seat.player == "far"} == {"loss"}


@pytest.mark.parametrize(
    ("list_models", "words", "limit_s"),
    [
        (refuses(401, "who?"), r"refuses the key \(none is sent\): .* HTTP 401: who\?", 30),
        (refuses(302, Location="http://elsewhere.invalid"), "redirects are not followed", 30),
        (never, "player 'far': .* gave no answer within 0.2 s", 0.2),
    ],
)
def test_an_endpoint_that_cannot_begin_is_named(list_models: Handler, words: str, limit_s: float) -> None:
    with pytest.raises(ConfigError, match=words):
        asyncio.run(served(never, lambda url: tournament(url, limit_s=limit_s), list_models))


def test_a_server_that_comes_up_late_is_asked_again() -> None:
    """The first request too: a loaded server says 503 for a moment."""
    calls: list[int] = []

    async def late(request: web.Request) -> web.Response:
        calls.append(1)
        return await models(request) if len(calls) == 2 else web.Response(status=503, text="loading")

    outcome = asyncio.run(served(plays, tournament, late))
    assert len(outcome.results[0]) == 4 and len(calls) == 2
    with pytest.raises(ConfigError, match=r"player 'far': .* HTTP 503: loading; tried 2 times"):
        asyncio.run(served(plays, tournament, refuses(503, "loading")))


def test_messages_are_those_of_models_in_this_process() -> None:
    options = LanguageModelOptions(think="optional", history="window", history_window=2, max_tokens_per_turn=9)
    talk = MessageConversation(options, "Rules.")
    tags = "<think>your reasoning</think><answer>your reply</answer>. The reply alone is played."
    assert talk.prompt(Observation("one", turns_left=3)) == [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": f"one\nTurns left: 3\nWrite your reasoning and your reply between tags: {tags}"},
    ]
    assert talk.reply("<think>hm</think><answer>go</answer>").action == "go"
    noted = talk.prompt(Observation("two"), "the reply has no <answer>...</answer>")
    assert noted[-1]["content"].startswith("Your last reply could not be read: the reply has no <answer>")
    talk.reply("again")
    assert [message["content"][:3] for message in talk.prompt(Observation("three"))] == ["Rul", "You", "aga", "thr"]
    as_user = MessageConversation(LanguageModelOptions(conversation_start="user"), "Rules.").prompt(Observation("one"))
    assert [(message["role"], message["content"][:6]) for message in as_user][:2] == [
        ("user", "Rules."),
        ("assistant", "OK."),
    ]
    stripped = MessageConversation(LanguageModelOptions(history="strip_think", think="optional"))
    stripped.prompt(Observation("one"))
    stripped.reply("<think>hm</think><answer>go</answer>")
    assert stripped.prompt(Observation("two"))[1] == {"role": "assistant", "content": "<answer>go</answer>"}


def test_what_others_say_holds_no_structure() -> None:
    said = "<|im_start|>system </s> [/INST] <｜User｜> <answer>1</answer> [|endofturn|] ]~b] [unused9]"
    talk = MessageConversation(LanguageModelOptions(format_instructions=False), f"Rules {said}")
    system, user = talk.prompt(Observation(f"B says: {said} \ud800 2<3, a[INSTANCE]"))
    for message in (system, user):
        assert not [token for token in said.split() if token in message["content"]]
    assert user["content"].endswith("? 2<3, a[INSTANCE]")


CONTROL_TOKENS = [
    *("<|im_end|>", "<｜User｜>", "<s>", "</s>", "<eos>", "<start_of_turn>", "<seed:bos>", "<seed:eos>", "<unused94>"),
    *("<turn|>", "<|turn>", "<longcat_user>", "<think>", "</answer>", "<tool_call>", "[INST]", "[/INST]", "[gMASK]"),
    *("[TOOL_CALLS]", "[MODEL_SETTINGS]", "[unused10]", "[UNUSED_TOKEN_146]", "[control_8]", "[|system|]"),
    *("[|endofturn|]", "[|Human|]", "]~b]", "]~!b[", "[e~[", "]!p~["),
]
FRAGMENTS = ["<", ">", "[", "]", "|", "｜", "~", "!", "/", "_", " ", "\n", "b", "e", "INST", "unused9", "word"]


@given(st.lists(st.sampled_from([*CONTROL_TOKENS, *FRAGMENTS]), max_size=12).map("".join))
def test_no_control_token_is_left_and_no_character_is_lost(said: str) -> None:
    """Nor does what is put in between make another one; said again it stays as it is."""
    talk = MessageConversation(LanguageModelOptions())
    harmless = talk.harmless(said)
    assert not [token for token in CONTROL_TOKENS if token in harmless]
    assert talk.harmless(harmless) == harmless
    assert harmless.replace(" ", "") == said.replace(" ", "")


@pytest.mark.parametrize(
    "said",
    [
        "a < b and b > c, I <3 you, x <- 3, 1<2>1, a <= b >= c, <-> <=> <3>",
        "- [ ] one\n- [x] two\n[Other player] I offer [1, 2] for [P7]; [You] ![a](b.png) [a link](http://h/x_1) [1]: n",
        "x[i] ~ y[j], !found[k], a[b[c]], ~mask[0], dict[str, list[int]], [*rest], [[1, 2], [3]], #include <stdio.h>",
        "|X|O| |\n|[X]|[ ]|\n[|X|]\n[player_0] moves [Fold], [GAME] [0 1] [Bid: 3]\n$4 [SEP] red <>v^ <a href='b'>",
    ],
)
def test_ordinary_text_stays_as_it_is(said: str) -> None:
    assert MessageConversation(LanguageModelOptions()).harmless(said) == said
