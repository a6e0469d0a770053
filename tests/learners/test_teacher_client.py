"""A teacher behind an endpoint: it says what the same model says as a checkpoint, or why it cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from learning import update
from transformers import AutoModelForCausalLM

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import listen
from rllib_lmgame.endpoints.address import Address, EndpointOptions
from rllib_lmgame.endpoints.client import EndpointError
from rllib_lmgame.endpoints.scoring import Scored, ScoringClient
from rllib_lmgame.envs.support.loop_thread import submitted
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.engines import teacher_client
from rllib_lmgame.learners.engines.teacher_client import TeacherClient
from rllib_lmgame.learners.objectives import PPOObjective
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.policies.options import LanguageModelOptions

PLAIN = {"advantage_estimator": "reinforce", "normalize_advantages": "none", "importance_sampling": None}
QUICK = EndpointOptions(attempts=3, first_wait_s=0.001)
IDS = [5, 3, 5, 9]


@pytest.fixture(scope="module")
def asked(tiny_model_dir: str) -> Iterator[str]:
    """The model of ``tiny_model_dir``, which scores prompts as vLLM's server does."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype="float32")
    tokenizer = load_tokenizer(tiny_model_dir, LanguageModelOptions())
    port: Future[int] = Future()

    async def listed(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]})

    async def scored(request: web.Request) -> web.Response:
        ids = (await request.json())["prompt"]
        problem = f"the prompt has {len(ids)} tokens; the context holds 128" if len(ids) > 128 else ""
        problem = f"a token outside the vocabulary of {len(tokenizer)}" if max(ids) >= len(tokenizer) else problem
        if problem:
            return web.json_response({"error": problem}, status=400)
        with torch.no_grad():
            rows = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        there = [
            {str(token): {"logprob": float(row[token]), "decoded_token": tokenizer.decode([token])}}
            for row, token in zip(rows, ids[1:], strict=True)
        ]
        return web.json_response({"choices": [{"text": "", "prompt_logprobs": [None, *there]}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", listed), web.post("/v1/completions", scored)])
    serving = submitted(listen(app, "127.0.0.1", 0, port.set_result, 1.0))
    yield f"openai:tiny@http://127.0.0.1:{port.result(60)}/v1"
    serving.cancel()


def learner_of(make_learner: Callable[..., Any], teacher: str, ppo: Mapping[str, Any] = {}) -> Any:
    learner = make_learner(critic=False, training={**PLAIN, **ppo}, entropy_coeff=0.0, lr=3e-3)
    learner.config.run = learner.config.run.with_values({"teacher": {"model": teacher}})
    learner._settings.clear()
    return learner


def test_it_says_the_same_of_each_token_as_the_checkpoint(
    make_learner: Callable[..., Any],
    make_episodes: Callable[..., Any],
    tiny_model_dir: str,
    asked: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of several turns, some cut short; and so the advantages and the figure."""
    found: list[Any] = []
    prepare = PPOObjective.prepare
    monkeypatch.setattr(PPOObjective, "prepare", lambda self, made: (prepare(self, made), found.append(made.batch)))
    metrics = []
    for teacher in (tiny_model_dir, asked):
        metrics.append(update(learner_of(make_learner, teacher), WholeEpisodes(episodes=make_episodes(12))))
    held, said = found
    assert np.ptp(held.teacher_logprobs) > 0.5 and len(held.teacher_logprobs) > 30
    np.testing.assert_allclose(said.teacher_logprobs, held.teacher_logprobs, atol=1e-4)
    np.testing.assert_allclose(said.advantages, held.advantages, atol=1e-4)
    assert metrics[1]["teacher_kl"] == pytest.approx(metrics[0]["teacher_kl"], abs=1e-4)


def test_a_row_that_it_does_not_take_ends_the_update(
    make_learner: Callable[..., Any], one_turn_episode: Callable[..., Any], asked: str
) -> None:
    learner = learner_of(make_learner, asked, ppo={"max_row_tokens": 256})
    with pytest.raises(EndpointError, match=r"the teacher said nothing of a row: .* 129 tokens; the context holds 128"):
        update(learner, [one_turn_episode(100, 29), one_turn_episode(10, 3)])


def test_its_vocabulary_is_compared_as_far_as_its_server_says(asked: str, tiny_model_dir: str) -> None:
    tokenizer = load_tokenizer(tiny_model_dir, LanguageModelOptions())
    teacher = TeacherClient(asked)
    teacher.check()
    assert teacher.other_vocabulary(tokenizer, 128) is None

    class Other:
        def __init__(self, size: int, text: str = "") -> None:
            self.size, self.text = size, text

        def __len__(self) -> int:
            return self.size

        def decode(self, ids: list[int]) -> str:
            return self.text or tokenizer.decode(ids)

    assert "is 'other' here, and" in (teacher.other_vocabulary(Other(len(tokenizer), "other"), 128) or "")
    with pytest.raises(ConfigError, match=rf"a token outside the vocabulary of {len(tokenizer)}"):
        teacher.other_vocabulary(Other(len(tokenizer) + 1), 128)


def score(answer: Callable[[Mapping[str, Any]], web.Response], times: int = 1) -> tuple[Scored, list[Any]]:
    """What a client gets of ``IDS`` from a server, and what it has asked."""
    requests: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        requests.append(await request.json())
        return answer(requests[-1])

    async def asking() -> Scored:
        app = web.Application()
        app.router.add_post("/v1/completions", handle)
        async with TestServer(app) as server:
            async with ScoringClient(Address("big", str(server.make_url("/v1")), None), QUICK, 5.0, 4) as client:
                found = await asyncio.gather(*(client.score(IDS) for _ in range(times)))
        assert all(each == found[0] for each in found)
        return found[0]

    return asyncio.run(asking()), requests


def named(ids: list[int] = IDS, number: Any = -0.5) -> web.Response:
    """As vLLM's server answers."""
    there = [{str(token): {"logprob": number, "rank": 2, "decoded_token": f"<{token}>"}} for token in ids[1:]]
    return said({"text": "", "prompt_logprobs": [None, *there]})


def said(choice: Any) -> web.Response:
    return web.Response(text=json.dumps({"choices": [choice]}), content_type="application/json")


def test_each_row_is_one_request() -> None:
    found, requests = score(lambda body: named(), times=3)
    assert found == Scored([-0.5] * 3, ["<3>", "<5>", "<9>"])
    asked = {"model": "big", "prompt": IDS, "max_tokens": 0, "echo": True, "prompt_logprobs": 0}
    assert requests == [asked] * 3


@pytest.mark.parametrize(
    ("choice", "said_of_it"),
    [
        ({"text": "hello"}, "they are not there"),
        ({"prompt_logprobs": [None, *({str(n): {"logprob": -1.0}} for n in (3, 4, 9))]}, "token 5, at place 2"),
        *(
            ({"prompt_logprobs": [None, *({str(n): {"logprob": number}} for n in (3, 5, 9))]}, "are no numbers, or no")
            for number in (float("nan"), 3.0)
        ),
        ({"prompt_logprobs": [None, {"3": {"logprob": -1.0}}, {"5": {"logprob": -1.0}}]}, "3 for 4 tokens"),
    ],
)
def test_numbers_of_other_tokens_are_refused(choice: Any, said_of_it: str) -> None:
    with pytest.raises(EndpointError, match=said_of_it):
        score(lambda body: said(choice))


def test_a_key_that_is_not_there_is_missed_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"\$TEACHER_KEY, which holds none") as caught:
        TeacherClient("openai:big@https://example.org/v1#TEACHER_KEY")
    assert caught.value.path == teacher_client.TEACHER
