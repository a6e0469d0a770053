"""A vLLM server that somebody else started: replies over HTTP, weights by vLLM's endpoints for updates.

Both exist with ``VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs``.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rllib_lmgame.base import http_client
from rllib_lmgame.inference.engines.threaded import Core, ThreadedEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import EngineStats, Generation, GenerationRequest, StopReason, failed
from rllib_lmgame.inference.weights import check_weights, tensors_of

LOOK_S = 0.05
"""Longest wait for replies before commands are looked at."""
MOST_BYTES = 256 << 20
PLAIN = {"ignore_eos": True, "return_token_ids": True, "repetition_penalty": 1.0, "min_p": 0.0}
"""In place of what the server takes from the model's generation_config.json."""


class ServerCore(Core):
    """Requests on their way. An update waits for all of them, so that each reply is of one version."""

    def __init__(
        self, model_dir: str, options: InferenceOptions, context_length: int, seed: int, trust_remote_code: bool
    ) -> None:
        from transformers import AutoConfig

        self._url = options.engine.url.rstrip("/")
        # The name is the server's, so that a copy that a killed run left is found again.
        self._copy = Path(options.engine.weights_dir or ".", re.sub(r"\W+", "-", f"rllib-lmgame-{self._url}"))
        shutil.rmtree(self._copy, ignore_errors=True)
        self._timeout, self._loop = options.request_timeout_s, asyncio.new_event_loop()
        self._running: dict[str, asyncio.Task[Generation]] = {}
        try:
            served = self._wait(self._ask("v1/models"))["data"][0]
            self._model, self.context_length = served["id"], min(context_length, served["max_model_len"])
        except (LookupError, TypeError, ValueError) as error:
            raise RuntimeError(f"{self._url} does not answer as a vLLM server does: {error!r}") from error
        config = AutoConfig.from_pretrained(model_dir, trust_remote_code=trust_remote_code)
        self.vocab_size = config.get_text_config().vocab_size

    def request_error(self, request: GenerationRequest) -> str | None:
        unknown = "a server constrains no replies" if request.choices is not None else None
        return unknown or super().request_error(request)

    def add(self, request: GenerationRequest) -> None:
        self._running[request.request_id] = self._loop.create_task(self._reply(request))

    def abort(self, request_ids: Iterable[str]) -> None:
        for task in [self._running.pop(name) for name in request_ids]:
            task.cancel()

    def has_work(self) -> bool:
        return bool(self._running)

    def step(self) -> Sequence[Generation]:
        self._wait(asyncio.wait(self._running.values(), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED))
        replies = [task.result() for task in self._running.values() if task.done()]
        for reply in replies:
            del self._running[reply.request_id]
        return replies

    def lengths(self) -> Mapping[str, int]:
        """Tokens of the replies that are there: all, once an update has begun."""
        return {name: len(task.result().response_ids) for name, task in self._running.items() if task.done()}

    def load(self, state: Mapping[str, Any]) -> None:
        from safetensors.torch import save_file

        tensors = tensors_of(state)
        check_weights(tensors, {}, tied_head=False)
        self._drain()
        try:
            self._copy.mkdir()
            save_file({name: t.contiguous() for name, t in tensors.items()}, self._copy / "model.safetensors")
            load = {"method": "reload_weights", "kwargs": {"weights_path": str(self._copy)}}
            self._wait(self._ask("collective_rpc", load))
        finally:
            shutil.rmtree(self._copy, ignore_errors=True)
        self.reset_prefix_cache()  # Unlike engines of the run, it knows nothing of versions.

    def worker_call(self, method: str, **kwargs: Any) -> None:
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

        self._drain()
        getattr(HTTPVLLMWeightSyncClient(self._url, self._timeout), method)(**kwargs)
        if method == "finish_weight_update":
            self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        self._wait(self._ask("reset_prefix_cache", {}))

    def fill_stats(self, stats: EngineStats) -> None:
        stats.running = len(self._running)

    def _wait(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(awaitable)

    def _drain(self) -> None:
        if self._running:
            self._wait(asyncio.wait(self._running.values()))

    async def _ask(self, path: str, body: Any = None) -> Any:
        method, url = "GET" if body is None else "POST", f"{self._url}/{path}"
        async with http_client.client() as http:
            try:
                reply = await http_client.ask(http, method, url, self._timeout, MOST_BYTES, json=body)
            except http_client.NoAnswer as error:
                raise RuntimeError(f"{url}: {error}") from None
        if reply.status != 200:
            raise RuntimeError(f"{url} answered {reply.status}: {reply.content[:300].decode(errors='replace')}")
        return json.loads(reply.content or b"null")

    async def _reply(self, request: GenerationRequest) -> Generation:
        try:
            return await self._replied(request)
        except RuntimeError as error:
            return failed(request.request_id, str(error), 0)
        except Exception as error:
            return failed(request.request_id, f"{self._url} does not answer as a vLLM server does: {error!r}", 0)

    async def _replied(self, request: GenerationRequest) -> Generation:
        sampling, scored = request.sampling, request.scored or ()
        body = {"model": self._model, "prompt": [*request.prompt_ids, *scored], **PLAIN}
        if scored:
            found = await self._ask("v1/completions", {**body, "max_tokens": 1, "prompt_logprobs": 0})
            rows = found["choices"][0]["prompt_logprobs"][-len(scored) :]
            ids, logprobs = list(scored), [row[str(token)]["logprob"] for row, token in zip(rows, scored, strict=True)]
            reason = StopReason.EOS
        else:
            names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids")
            body |= {name: getattr(sampling, name) for name in names}
            (choice,) = (await self._ask("v1/completions", {**body, "logprobs": 0}))["choices"]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            reason = {"stop": StopReason.EOS, "length": StopReason.MAX_TOKENS}[choice["finish_reason"]]
            if len(ids) != len(logprobs) or not np.isfinite(np.array(logprobs, np.float32)).all():
                raise ValueError(f"{len(ids)} tokens with log-probabilities {logprobs}")
            ends = (n for n in range(1, len(ids) + 1) if sampling.stop_strings and self.stops(sampling, ids[:n]))
            if (end := next(ends, None)) is not None:
                ids, logprobs, reason = ids[:end], logprobs[:end], StopReason.EOS
        return Generation(request.request_id, np.array(ids, np.int32), np.array(logprobs, np.float32), reason)


class ServerEngine(ThreadedEngine):
    core_class = ServerCore
