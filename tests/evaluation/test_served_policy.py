"""A policy behind an endpoint, asked by OpenAI's client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllib_lmgame.base.http_server import listen
from rllib_lmgame.endpoints.chat_server import ChatEndpoint
from rllib_lmgame.evaluation.players.language_model import hugging_face_player
from rllib_lmgame.evaluation.players.served import ServedPolicy
from rllib_lmgame.evaluation.players.settings import PlayerSettings

HELLO: list[Any] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Up or Down?"}]


@pytest.fixture(scope="module")
def with_clients(tiny_model_dir: str) -> Callable[..., Any]:
    """Function ``(use)``: what ``await use(client, address)`` gives, of a client whose key is ``right``."""

    async def served(use: Callable[[openai.AsyncOpenAI, str], Coroutine[Any, Any, Any]]) -> Any:
        sections = {"language_model": {"context_length": 128, "max_tokens_per_turn": 8, "dtype": "float32"}}
        player: Any = hugging_face_player("tiny", f"hf:{tiny_model_dir}", PlayerSettings(sections=sections))
        async with player:
            policy = ServedPolicy(player)
            endpoint = ChatEndpoint("tiny", policy.score)
            endpoint.admit("right", policy)
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
            with pytest.raises(openai.AuthenticationError, match="no such token") as refused:
                await stranger.models.list()
            assert "episode" not in str(refused.value)
        for more, param in (({"n": 2}, "n"), ({"stop": ["x"]}, "stop"), ({"temperature": -1}, "temperature")):
            with pytest.raises(openai.BadRequestError) as error:
                await client.chat.completions.create(**{"model": "m", "messages": HELLO, **more})
            assert error.value.param == param
        long: list[Any] = [{"role": "user", "content": "Up " * 500}]
        with pytest.raises(openai.BadRequestError, match="the context holds 128") as error:
            await client.chat.completions.create(model="m", messages=long)
        assert error.value.code == "context_length_exceeded"

    with_clients(use)


def test_log_probabilities_of_a_prompt_are_those_of_the_model(
    with_clients: Callable[..., Any], tiny_model_dir: str
) -> None:
    """As vLLM's server gives them, and nothing else of its completions."""
    ids = [3, 7, 7, 11, 2, 30]
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype="float32")
    with torch.no_grad():
        known = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)

    async def use(client: openai.AsyncOpenAI, address: str) -> None:
        ask: dict[str, Any] = {"model": "m", "prompt": ids, "max_tokens": 0, "extra_body": {"prompt_logprobs": 0}}
        answer = await client.completions.create(**ask)
        first, *scored = answer.choices[0].prompt_logprobs
        assert first is None and [list(each) for each in scored] == [[str(each)] for each in ids[1:]]
        found = [each[str(token)] for token, each in zip(ids[1:], scored, strict=True)]
        assert [each["logprob"] for each in found] == pytest.approx(known[:, 0].tolist(), abs=1e-5)
        assert [each["decoded_token"] for each in found] == [tokenizer.decode([token]) for token in ids[1:]]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 0)
        for more, param in (
            ({"prompt": "words"}, "prompt"),
            ({"prompt": [3]}, "prompt"),
            ({"prompt": [3, 10**6]}, "prompt"),
            ({"max_tokens": 5}, "max_tokens"),
            ({"extra_body": {}}, "prompt_logprobs"),
            ({"logprobs": 1}, "logprobs"),
            ({"stream": True}, "stream"),
        ):
            with pytest.raises(openai.BadRequestError) as error:
                await client.completions.create(**{**ask, **more})
            assert error.value.param == param
        with pytest.raises(openai.BadRequestError, match="129 tokens; the context holds 128") as error:
            await client.completions.create(**{**ask, "prompt": [3] * 129})
        assert error.value.code == "context_length_exceeded"
        async with openai.AsyncOpenAI(base_url=address, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.completions.create(**ask)

    with_clients(use)
