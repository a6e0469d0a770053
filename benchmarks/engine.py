"""Engine throughput: generated tokens per second, prefix reuse and weight transfer, on a small float32 model.

    python benchmarks/engine.py --modes in_process actor actor_busy separate_core transformers --games 64 256

Each game plays ``--turns`` turns: a prompt shared by all games, then its own observations and replies, as in a real
rollout. ``actor`` goes through Ray and the client; ``actor_busy`` does so while the client's process computes between
turns as an env runner does; ``separate_core`` is vLLM's own ``AsyncLLM`` with its engine core in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")

from rllib_lmgame.inference.options import VLLM, InferenceOptions
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec
from rllib_lmgame.inference.serving.client import EngineClient

MODES = ("in_process", "actor", "actor_busy", "separate_core", "transformers")
CONTEXT = 1024
NUM_PARAMETERS = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}

Generate = Callable[[GenerationRequest], Awaitable[Any]]


@dataclass(frozen=True)
class Workload:
    """What is played: token counts of one turn, and how long the client computes between turns."""

    games: int
    turns: int
    shared: int
    observation: int
    reply: int
    think_ms: float = 0.0


def build_model(directory: str) -> int:
    """Write a random Qwen2 of about 1 M parameters; returns how many."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=512, max_position_embeddings=CONTEXT, tie_word_embeddings=True, **NUM_PARAMETERS)
    )
    model.save_pretrained(directory)
    return sum(p.numel() for p in model.parameters())


async def play(generate: Generate, work: Workload, tag: str) -> dict[str, float]:
    """Play every game; tokens generated, prompt tokens, unique prompt tokens and seconds."""
    shared = [3 + i % 500 for i in range(work.shared)]
    totals = {"generated": 0, "prompt": 0, "unique": work.shared}

    async def game(index: int) -> None:
        rng = random.Random(index)
        prompt = list(shared)
        for turn in range(work.turns):
            observation = [rng.randrange(3, 512) for _ in range(work.observation)]
            prompt += observation
            _compute(work.think_ms)
            request = GenerationRequest(f"{tag}-{index}/p/{turn}", list(prompt), SamplingSpec(work.reply))
            reply = await generate(request)
            if reply.error:
                raise RuntimeError(reply.error)
            totals["generated"] += len(reply.response_ids)
            totals["prompt"] += len(prompt)
            totals["unique"] += work.observation + (len(reply.response_ids) if turn + 1 < work.turns else 0)
            prompt += reply.response_ids.tolist()

    began = time.perf_counter()
    await asyncio.gather(*(game(i) for i in range(work.games)))
    return {**totals, "seconds": time.perf_counter() - began}


def _compute(milliseconds: float) -> None:
    """Keep this process's core busy, as a game and its text do."""
    end = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < end:
        pass


async def measure(generate: Generate, stats: Callable[[], Awaitable[Any]] | None, work: Workload) -> dict[str, float]:
    """One warm-up, then one measured round."""
    await play(generate, Workload(work.games, 1, work.shared, work.observation, 2), "warm")
    before = await stats() if stats else None
    result = await play(generate, work, "measured")
    row = {"tokens_per_s": result["generated"] / result["seconds"], "seconds": result["seconds"]}
    after = await stats() if stats else None
    if before is not None and after is not None:
        row["engine_busy"] = (after.busy_s - before.busy_s) / result["seconds"]
        row["steps"] = after.steps - before.steps
        row["prompt_computed_per_unique"] = (after.prompt_tokens_computed - before.prompt_tokens_computed) / result[
            "unique"
        ]
    return row


async def run_local(model_dir: str, options: InferenceOptions, works: list[Workload]) -> list[dict[str, float]]:
    """An engine in this process."""
    from rllib_lmgame.inference.serving.actor import EngineSpec, make_engine

    engine = make_engine(EngineSpec("local", model_dir, options, CONTEXT))
    await engine.start()
    rows = [await measure(engine.generate, engine.stats, work) for work in works]
    await engine.shutdown()
    return rows


def run_actor(model_dir: str, options: InferenceOptions, works: list[Workload]) -> list[dict[str, float]]:
    """An engine actor, reached through Ray; with the time of a weight push."""
    import ray
    from safetensors.numpy import load_file

    from rllib_lmgame.inference.serving.group import EngineGroup

    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    began = time.perf_counter()
    group = EngineGroup.create("bench", model_dir, options, CONTEXT)
    start_s = time.perf_counter() - began
    handle = ray.get_actor(group.names[0])

    async def run(work: Workload) -> dict[str, float]:
        client = EngineClient(group.names)
        return await measure(client.generate, lambda: _answer(handle.stats.remote()), work)

    rows = [asyncio.run(run(work)) for work in works]
    state = load_file(os.path.join(model_dir, "model.safetensors"))
    pushes = sorted(group.push(state, i + 1).seconds for i in range(7))
    for row in rows:
        row |= {"start_s": start_s, "push_s_median": pushes[3], "push_s_max": pushes[-1]}
    group.shutdown()
    ray.shutdown()
    return rows


async def _answer(reference: Any) -> Any:
    return await reference


async def run_separate_core(model_dir: str, works: list[Workload]) -> list[dict[str, float]]:
    """vLLM's own asynchronous engine, whose core is a process of its own."""
    os.environ.update(VLLM().variables(InferenceOptions()) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        model=model_dir,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=256 << 20,
        block_size=32,
        max_model_len=CONTEXT,
        max_num_seqs=256,
        logprobs_mode="processed_logprobs",
        distributed_executor_backend="uni",
        disable_log_stats=True,
    )
    engine = AsyncLLM.from_engine_args(arguments)

    @dataclass
    class Reply:
        response_ids: Any
        error: None = None

    async def generate(request: GenerationRequest) -> Reply:
        import numpy as np

        params = SamplingParams(
            max_tokens=request.sampling.max_tokens,
            logprobs=0,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for output in engine.generate({"prompt_token_ids": request.prompt_ids}, params, request.request_id):
            last = output
        return Reply(np.array(last.outputs[0].token_ids))

    rows = [await measure(generate, None, work) for work in works]
    engine.shutdown()
    return rows


def run_mode(mode: str, model_dir: str, works: list[Workload], think_ms: float) -> list[dict[str, float]]:
    """Measure one mode in this process."""
    if mode == "in_process":
        return asyncio.run(run_local(model_dir, InferenceOptions(), works))
    if mode == "transformers":
        return asyncio.run(run_local(model_dir, InferenceOptions(engine="transformers"), works))
    if mode == "separate_core":
        return asyncio.run(run_separate_core(model_dir, works))
    if mode == "actor_busy":
        works = [Workload(w.games, w.turns, w.shared, w.observation, w.reply, think_ms) for w in works]
    return run_actor(model_dir, InferenceOptions(), works)


def main() -> None:
    """Measure every mode in a process of its own and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--games", nargs="+", type=int, default=[64])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--shared", type=int, default=20, help="prompt tokens all games share")
    parser.add_argument("--observation", type=int, default=25, help="new prompt tokens per turn")
    parser.add_argument("--reply", type=int, default=10)
    parser.add_argument(
        "--think-ms", type=float, default=1.0, help="computing per turn in the client's process (actor_busy)"
    )
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    works = [Workload(g, args.turns, args.shared, args.observation, args.reply) for g in args.games]
    if args.one:
        mode, model_dir, target = args.one.split("|")
        with open(target, "w") as file:
            json.dump(run_mode(mode, model_dir, works, args.think_ms), file)
        return
    results = _measure_all(args, works)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(
                {
                    "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
                    "results": results,
                },
                file,
                indent=1,
            )


def _measure_all(args: argparse.Namespace, works: list[Workload]) -> list[dict[str, Any]]:
    import subprocess

    results = []
    with tempfile.TemporaryDirectory() as folder:
        parameters = build_model(folder)
        print(
            f"{parameters:,} parameters, {os.cpu_count()} cores, {args.turns} turns of {args.observation} new and "
            f"{args.reply} generated tokens"
        )
        for mode in args.modes:
            target = os.path.join(folder, f"{mode}.json")
            command = [sys.executable, os.path.abspath(__file__), "--one", f"{mode}|{folder}|{target}", *sys.argv[1:]]
            environment_ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            done = subprocess.run(command, env=environment_, capture_output=True, text=True)
            if done.returncode:
                print(f"{mode:15s} failed: {done.stderr.strip().splitlines()[-1:]}")
                continue
            with open(target) as file:
                rows = json.load(file)
            for work, row in zip(works, rows, strict=True):
                results.append({"mode": mode, "games": work.games, **row})
                numbers = "  ".join(f"{k} {v:.3g}" for k, v in row.items() if k != "tokens_per_s")
                print(f"{mode:15s} {work.games:4d} games  {row['tokens_per_s']:7.0f} tokens/s  {numbers}", flush=True)
    return results


if __name__ == "__main__":
    main()
