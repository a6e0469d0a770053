"""A policy behind an endpoint, asked by OpenAI's client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pytest

from rllib_lmgame.endpoints.chat_server import ChatEndpoint
from rllib_lmgame.evaluation.players.language_model import hugging_face_player
from rllib_lmgame.evaluation.players.served import ServedPolicy
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.listening import listen

HELLO: list[Any] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Up or Down?"}]


@pytest.fixture(scope="module")
def with_clients(tiny_model_dir: str) -> Callable[..., Any]:
    """Function ``(use)``: what ``await use(client, address)`` gives, of a client whose key is ``right``."""

    async def served(use: Callable[[openai.AsyncOpenAI, str], Coroutine[Any, Any, Any]]) -> Any:
        sections = {"language_model": {"context_length": 128, "max_tokens_per_turn": 8, "dtype": "float32"}}
        player: Any = hugging_face_player("tiny", f"hf:{tiny_model_dir}", PlayerSettings(sections=sections))
        async with player:
            endpoint = ChatEndpoint("tiny")
            endpoint.admit("right", ServedPolicy(player))
            port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            server = asyncio.create_task(listen(endpoint.app(), "127.0.0.1", 0, port.set_result, 1.0, cancels=True))
            address = f"http://127.0.0.1:{await port}/v1"
            async with openai.AsyncOpenAI(base_url=address, api_key="right") as client:
                try:
                    return await use(client, address)
                finally:
                    server.cancel()

    return lambda use: asyncio.run(served(use))


def test_a_policy_replies_also_in_a_stream_and_counts_its_tokens(with_clients: Callable[..., Any]) -> None:
    async def use(client: openai.AsyncOpenAI, address: str) -> None:
        asked: dict[str, Any] = {"model": "any", "messages": HELLO, "temperature": 0}
        one, other = await asyncio.gather(*(client.chat.completions.create(**asked) for _ in range(2)))
        said = one.choices[0].message
        assert said.content == other.choices[0].message.content and said.role == "assistant"
        assert one.usage.prompt_tokens > 0 and 1 <= one.usage.completion_tokens <= 8
        assert one.choices[0].finish_reason in ("stop", "length")
        for sampled in ({"temperature": 1, "top_p": 0}, {"temperature": 1e-300}):
            likeliest = await client.chat.completions.create(**{**asked, **sampled})
            assert likeliest.choices[0].message.content == said.content, "the most likely tokens, as at 0"
        short = await client.chat.completions.create(**asked, max_tokens=1)
        assert short.usage.completion_tokens == 1
        counted = {"include_usage": True}
        chunks = [
            each async for each in await client.chat.completions.create(**asked, stream=True, stream_options=counted)
        ]
        parts = [each.choices[0].delta.content or "" for each in chunks if each.choices]
        assert "".join(parts) == said.content and chunks[-1].usage == one.usage
        assert [model.id async for model in client.models.list()] == ["tiny"]

    with_clients(use)


def test_what_cannot_be_had_is_said_in_openais_form(with_clients: Callable[..., Any]) -> None:
    async def use(client: openai.AsyncOpenAI, address: str) -> None:
        async with openai.AsyncOpenAI(base_url=address, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()
        for more, param in (({"n": 2}, "n"), ({"stop": ["x"]}, "stop"), ({"temperature": -1}, "temperature")):
            with pytest.raises(openai.BadRequestError) as error:
                await client.chat.completions.create(**{"model": "m", "messages": HELLO, **more})
            assert error.value.param == param
        long: list[Any] = [{"role": "user", "content": "Up " * 500}]
        with pytest.raises(openai.BadRequestError, match="the context holds 128") as error:
            await client.chat.completions.create(model="m", messages=long)
        assert error.value.code == "context_length_exceeded"

    with_clients(use)
