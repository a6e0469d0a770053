"""Time of one update of GRPO on one-turn games in groups of eight, with shared prompts and without.

A Llama of SmolLM2's widths with random weights and fewer layers, float32; prompts of 70 and 300 tokens, replies of 8.
Both learners take turns, so that a busy machine slows both.

    python benchmarks/shared_prompts.py [--iterations 3] [--threads 1] [--layers 4] [--groups 4] [--prompts 70 300]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

GROUP, REPLY, VOCABULARY = 8, 8, 49_152
SHAPE = {
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}


def main() -> None:
    """Run the benchmark and print a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--prompts", type=int, nargs="+", default=[70, 300])
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    import torch
    from update import make_learner

    torch.set_num_threads(arguments.threads)
    found = []
    with tempfile.TemporaryDirectory() as directory:
        make_model(directory, arguments.layers)
        options = {"advantage_estimator": "grpo", "num_minibatches": 1}
        learners = {
            shared: make_learner(directory, critic=False, share_prompts=shared, **options) for shared in (True, False)
        }
        torch.set_num_threads(arguments.threads)
        for prompt in arguments.prompts:
            found.append({"prompt": prompt, "reply": REPLY} | compared(learners, prompt, arguments))
    print(json.dumps({"layers": arguments.layers, "threads": arguments.threads, "updates": found}, indent=1))


def make_model(directory: str, layers: int) -> None:
    """Save the random model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, **SHAPE)).save_pretrained(directory)


def make_episodes(groups: int, prompt: int) -> list[Any]:
    """Episodes of one turn, the prompt of each group of random ids."""
    import numpy as np
    from update import episode_of

    from rllib_lmgame.rollouts.records import Turn

    rng = np.random.default_rng(0)
    episodes = []
    for group in range(groups):
        asked = rng.integers(0, VOCABULARY, prompt).astype(np.int32)
        for _ in range(GROUP):
            reply = rng.integers(0, VOCABULARY, REPLY).astype(np.int32)
            logprobs = np.full(REPLY, -np.log(VOCABULARY), np.float32)
            episodes.append(episode_of([Turn(asked, reply, logprobs, float(rng.normal()), 0, True)], str(group)))
    return episodes


def compared(learners: dict[bool, Any], prompt: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Median seconds of an update with shared prompts and without, after one to warm up, and their tokens."""
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

    from rllib_lmgame.learners.data.sharding import WholeEpisodes

    episodes = make_episodes(arguments.groups, prompt)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    computed = {}
    for _ in range(arguments.iterations + 1):
        for shared, learner in learners.items():
            started = time.perf_counter()
            results = learner.update(training_data=WholeEpisodes(episodes=episodes))
            seconds[shared].append(time.perf_counter() - started)
            computed[shared] = MetricsLogger.peek_results(results)["player"]["num_computed_tokens"]
    with_it, without = (statistics.median(seconds[shared][1:]) for shared in (True, False))
    return {
        "computed_tokens": int(computed[True]),
        "given_tokens": int(computed[False]),
        "shared_s": round(with_it, 2),
        "unshared_s": round(without, 2),
        "ratio": round(without / with_it, 2),
    }


if __name__ == "__main__":
    main()
