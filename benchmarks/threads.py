"""One CPU thread against several, in an engine and in a learner, by size of the model.

Rounds take turns (1, n, n, 1, ...) in one process, and ratios are those of neighbouring rounds. On a machine that does
other work wall times say little; the CPU seconds of the thread that leads are what a round would take on idle cores
where threads sleep, and do not spin, until their share is due: run with ``OMP_WAIT_POLICY=PASSIVE`` to read them so.

    python benchmarks/threads.py engine [--size tiny] [--threads 2] [--sequences 256] [--dtype float32] [--rounds 6]
    python benchmarks/threads.py update [--size tiny] [--threads 2] [--sequences 48] [--rounds 6]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

SIZES = {
    "tiny": (96, 3, 3, 256),
    "1M": (128, 4, 4, 464),
    "5M": (256, 6, 8, 912),
    "14M": (384, 8, 12, 1024),
    "106M": (576, 30, 9, 1536),
}
"""Width, layers, heads and width of the feed-forward layers; ``tiny`` is what the quick start trains, the largest has
the shape of SmolLM2-135M without its vocabulary.
"""

PROMPT, REPLY = 80, 16
"""Tokens of the engine's requests, as in the quick start."""

Round = tuple[float, float, float]
"""Seconds of the wall, CPU seconds of the leading thread, of the process."""


def main() -> None:
    """Measure and print one line per number of threads, then the ratios."""
    arguments = parse()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    from machine import describe, machine

    where = describe(machine())
    measure = {"engine": engine_rounds, "update": update_rounds}[arguments.what]
    with tempfile.TemporaryDirectory() as directory:
        rounds = measure(arguments, make_model(directory, arguments.size))
    print(f"\n{where}\n\n" + "\n".join(lines(arguments, rounds)))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("engine", "update"))
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=64, help="requests at once, or episodes of an update")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the engine")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of measured rounds, after one to warm up")
    return parser.parse_args()


def make_model(directory: str, size: str) -> str:
    """Save a random Qwen2."""
    import update

    width, layers, heads, inner = SIZES[size]
    update.SHAPE = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
    }
    update.make_model(directory)
    return directory


def in_turn(
    arguments: argparse.Namespace, set_threads: Callable[[int], None], work: Callable[[], Any]
) -> dict[int, list[Round]]:
    """Number of threads -> its rounds; ``work`` is one round."""
    rounds: dict[int, list[Round]] = {1: [], arguments.threads: []}
    for number in range(2 * arguments.rounds + 2):
        threads = (1, arguments.threads, arguments.threads, 1)[number % 4]
        set_threads(threads)
        began = time.perf_counter(), time.thread_time(), time.process_time()
        work()
        wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
        if number >= 2:
            rounds[threads].append((wall - began[0], thread - began[1], process - began[2]))
    return rounds


def engine_rounds(arguments: argparse.Namespace, model_dir: str) -> dict[int, list[Round]]:
    """Requests without games, all at once, by vLLM's core in this thread."""
    import torch

    set_threads = torch.set_num_threads  # vLLM puts a function in its place that does nothing.
    import numpy as np

    from rllib_lmgame.inference.engines.vllm_engine import VLLMCore
    from rllib_lmgame.inference.options import InferenceOptions
    from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec

    options = InferenceOptions(max_num_seqs=256, num_threads=arguments.threads, dtype=arguments.dtype)
    core, rng = VLLMCore(model_dir, options, 512, 0, False), np.random.default_rng(0)

    def work() -> None:
        for index, prompt in enumerate(rng.integers(0, 300, (arguments.sequences, PROMPT)).tolist()):
            core.add(GenerationRequest(f"{time.perf_counter()}/{index}", prompt, SamplingSpec(REPLY, 1.0)))
        while core.has_work():
            core.step()

    return in_turn(arguments, set_threads, work)


def update_rounds(arguments: argparse.Namespace, model_dir: str) -> dict[int, list[Round]]:
    """Updates of four minibatches on episodes of five turns of about 45 tokens."""
    import torch
    import update

    from rllib_lmgame.learners.data.sharding import WholeEpisodes

    update.EPISODES, update.SHARED_PREFIX, update.FIRST_PROMPT = arguments.sequences, 20, 100
    update.DELTA, update.REPLY = (30, 40), (10, 16)
    learner = update.make_learner(model_dir, max_tokens_per_microbatch=8192, num_minibatches=4)
    data = WholeEpisodes(episodes=update.make_episodes(learner))
    return in_turn(arguments, torch.set_num_threads, lambda: learner.update(training_data=data))


def lines(arguments: argparse.Namespace, rounds: dict[int, list[Round]]) -> list[str]:
    """Medians of each number of threads, and the ratios of neighbours."""
    of = f"{arguments.what}, {arguments.size}, {arguments.sequences} sequences, {arguments.dtype}"
    found = []
    for threads, measured in rounds.items():
        wall, thread, process = (statistics.median(column) for column in zip(*measured, strict=True))
        found.append(
            f"{of}, {threads} thread(s): wall {wall:.3f} s, CPU of the leading thread {thread:.3f} s, of all "
            f"{process:.3f} s (medians of {len(measured)})"
        )
    pairs = list(zip(rounds[1], rounds[arguments.threads], strict=True))
    names = ("wall", "CPU of the leading thread", "CPU of all")
    ratios = [sorted(many[i] / one[i] for one, many in pairs) for i in range(3)]
    shown = [
        f"{name} {statistics.median(r):.2f} ({r[0]:.2f} to {r[-1]:.2f})" for name, r in zip(names, ratios, strict=True)
    ]
    return [*found, f"{of}, {arguments.threads} threads / 1: {', '.join(shown)}"]


if __name__ == "__main__":
    main()
