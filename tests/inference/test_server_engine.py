"""The engine of a vLLM server outside of the run, with a server that notes what it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import load_file

from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.inference.serving.actor import EngineSpec, make_engine

LONG = 9
"""A prompt whose reply takes a moment."""


async def served_by(models: Any, completions: Any, *more: web.RouteDef) -> tuple[web.AppRunner, str]:
    """A server to clean up, and its URL."""
    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", completions), *more])
    await (runner := web.AppRunner(app)).setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    return runner, f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"


def test_token_ids_travel_and_an_update_waits_for_replies(model_dir: str, tmp_path: Path) -> None:
    log: list[Any] = []
    resets: list[int] = []
    sampling = SamplingSpec(3, temperature=0.5, top_k=7, stop_token_ids=(4,), seed=11)

    async def models(_: Any) -> web.Response:
        return web.json_response({"data": [{"id": "served", "max_model_len": 40}]})

    async def completions(asked: web.Request) -> web.Response:
        body = await asked.json()
        if body["prompt"] == [3]:
            return web.json_response({"error": "no"}, status=500)
        await asyncio.sleep(0.3 if LONG in body["prompt"] else 0)
        log.append(body)
        rows = [None, *({str(token): {"logprob": -float(token)}} for token in body["prompt"][1:])]
        reply = {"token_ids": [6, 4], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "stop"}
        return web.json_response({"choices": [{**reply, "prompt_logprobs": rows}]})

    async def rpc(asked: web.Request) -> web.Response:
        body = await asked.json()
        log.append(load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors"))
        return web.json_response({"results": [None]})

    async def reset(_: Any) -> web.Response:
        resets.append(len(log))
        return web.Response()

    async def play() -> list[Any]:
        more = [web.post("/collective_rpc", rpc), web.post("/reset_prefix_cache", reset)]
        runner, url = await served_by(models, completions, *more)
        options = InferenceOptions(engine={"type": "server", "url": f"{url}/", "weights_dir": str(tmp_path)})
        port = url.strip("/").rpartition(":")[2]
        (tmp_path / f"rllib-lmgame-http-127-0-0-1-{port}").mkdir()  # Of a run that was killed in a push.
        engine = make_engine(EngineSpec("e", model_dir, options, 64))
        await engine.start()
        asked = [GenerationRequest("a", [5, LONG], sampling), GenerationRequest("b", [3], sampling)]
        scored = GenerationRequest("c", [5], sampling, None, (6, 8))
        long = GenerationRequest("d", list(range(5, 46)), sampling)
        replies = [asyncio.create_task(engine.generate(each)) for each in (*asked, scored, long)]
        await asyncio.sleep(0.1)
        await engine.update_weights({"w": np.ones(2, np.float32)}, 1)
        found = [await reply for reply in replies]
        await engine.shutdown()
        await runner.cleanup()
        return found

    reply, refused, scored, long = asyncio.run(play())
    assert (reply.response_ids.tolist(), reply.logprobs.tolist()) == ([6, 4], [-0.5, -0.25])
    assert (reply.stop_reason, reply.policy_version) == (StopReason.EOS, 0)
    assert "answered 500" in refused.error and "the context holds 40" in long.error
    assert (scored.response_ids.tolist(), scored.logprobs.tolist()) == ([6, 8], [-6.0, -8.0])
    assert resets and resets[-1] == len(log), "what was cached of the old weights is used no more"
    assert list(log[-1]) == ["w"] and not list(tmp_path.iterdir())
    (body,) = (each for each in log[:-1] if LONG in each["prompt"])
    sent = {"model": "served", "temperature": 0.5, "top_k": 7, "top_p": 1.0, "seed": 11, "stop_token_ids": [4]}
    assert sent.items() <= body.items() and body["repetition_penalty"] == 1.0 and body["ignore_eos"]


RIGHT = {"token_ids": [6, 4], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "length"}
WRONG = (
    {"finish_reason": "abort"},
    {"finish_reason": None},
    {"logprobs": {"token_logprobs": [-0.5]}},
    {"logprobs": {"token_logprobs": [None, -0.25]}},
    {"token_ids": None},
)


def test_what_is_no_whole_reply_of_vllm_is_an_error_that_names_the_server(model_dir: str, tmp_path: Path) -> None:
    served: dict[str, Any] = {"data": [{"id": "served", "max_model_len": 40}]}
    choices: list[Any] = [RIGHT, *({**RIGHT, **wrong} for wrong in WRONG)]
    left = list(choices)

    async def models(_: Any) -> web.Response:
        return web.json_response(served)

    async def completions(_: Any) -> web.Response:
        return web.json_response({"choices": [left.pop(0)]})

    async def play() -> tuple[str, list[Any]]:
        runner, url = await served_by(models, completions)
        options = InferenceOptions(engine={"type": "server", "url": url, "weights_dir": str(tmp_path)})
        spec = EngineSpec("e", model_dir, options, 64)
        await (engine := make_engine(spec)).start()
        asked = (GenerationRequest(f"{n}", [5], SamplingSpec(3)) for n, _ in enumerate(choices))
        replies = [await engine.generate(each) for each in asked]
        await engine.shutdown()
        del served["data"]
        with pytest.raises(Exception, match=f"{url} does not answer as a vLLM server"):
            await make_engine(spec).start()
        await runner.cleanup()
        with pytest.raises(Exception, match=f"{url}/v1/models: "):
            await make_engine(spec).start()
        return url, replies

    url, (right, *wrong) = asyncio.run(play())
    assert right.stop_reason is StopReason.MAX_TOKENS
    assert all(url in reply.error and not reply.response_ids.size for reply in wrong)


@pytest.mark.parametrize("weight_transport", ["object_store", "nccl"])
def test_a_server_is_no_process_of_the_run(weight_transport: str) -> None:
    from rllib_lmgame.algorithms.cluster.footprint import footprint
    from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

    server = {"type": "server", "url": "http://h:1", "weights_dir": "/"}
    config = LMGamePPOConfig().environment("lmgame/FrozenLake-v0")
    config.inference(engine=server, weight_transport=weight_transport).learners(num_gpus_per_learner=1)
    config.validate()
    (engine,) = (each for each in footprint(config).processes if each.name.startswith("engine"))
    assert not engine.parts
