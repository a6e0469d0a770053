"""The most memory that updates of random models take, beside the estimate of ``--dry-run``.

Each model is measured by ``tests/learners/measure_memory.py`` in a process of its own that gives freed memory back at
once, behind a tiny one, so that what the process has before it learns does not count. The estimate goes without its
allowance for blocks that the C library keeps. Qwen2.5-0.5B's shape takes 10 GiB; with few of its layers memory grows by
the same amount with each. LoRA is of rank 16 on all linear layers.

    python benchmarks/memory.py [--models tiny SmolLM2-135M ...]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

MEASURE = HERE.parent / "tests" / "learners" / "measure_memory.py"
PROMPT, REPLY = 96, 32
RANK = 16
ALGORITHMS = {"PPO": ("gae", None), "GRPO": ("grpo", None), "PPO, LoRA": ("gae", RANK), "GRPO, LoRA": ("grpo", RANK)}


class Model(NamedTuple):
    """A random Qwen2, and the limits of its update: tokens of a micro-batch, and of a chunk of the head."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    microbatch: int
    chunk: int


MODELS = {
    "tiny": Model(96, 3, 3, 3, 256, 320, 8192, 4096),
    "14 M": Model(384, 8, 12, 12, 1024, 320, 2048, 1024),
    "SmolLM2-135M": Model(576, 30, 9, 3, 1536, 49_152, 512, 256),
    "Qwen2.5-0.5B, 2 of 24 layers": Model(896, 2, 14, 2, 4864, 151_936, 512, 256),
    "Qwen2.5-0.5B, 6 of 24 layers": Model(896, 6, 14, 2, 4864, 151_936, 512, 256),
    "Qwen2.5-0.5B": Model(896, 24, 14, 2, 4864, 151_936, 512, 256),
}


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    names = parser.parse_args().models
    print("| model | algorithm | tokens of a micro-batch / of a chunk | estimate, MiB | measured peak, MiB | ratio |")
    print("|---|---|---|---|---|---|")
    for name in names:
        for algorithm, estimated, peak in measured(MODELS[name]):
            limits = f"{MODELS[name].microbatch:,} / {MODELS[name].chunk:,}"
            print(
                f"| {name} | {algorithm} | {limits} | {estimated:,.0f} | {peak:,.0f} | {estimated / peak:.2f} |",
                flush=True,
            )


def measured(model: Model) -> Iterator[tuple[str, float, float]]:
    """Algorithm, MiB that are estimated, and MiB at the peak."""
    from rllib_lmgame.algorithms.cluster.memory import WORKSPACE_MIB, adapter_parameters, learner_mib, model_shape
    from rllib_lmgame.policies.options import LoraOptions

    smallest = Model(32, 1, 2, 2, 64, 320, 64, 64)
    with tempfile.TemporaryDirectory() as directory:
        configs = {each: save(each, f"{directory}/{number}") for number, each in enumerate((smallest, model))}
        shape = model_shape(configs[model])
        for algorithm, (estimator, rank) in ALGORITHMS.items():
            cases = [case(each, f"{directory}/{number}", estimator, rank) for number, each in enumerate(configs)]
            done = subprocess.run([sys.executable, str(MEASURE), json.dumps(cases)], capture_output=True, check=True)
            parts = learner_mib(
                shape,
                microbatch_tokens=model.microbatch,
                head_chunk_tokens=model.chunk,
                critic=estimator == "gae",
                copies=int(rank is not None),
                adapters=None if rank is None else adapter_parameters(shape, LoraOptions(r=rank)),
            )
            peak = json.loads(done.stdout.splitlines()[-1])["cases"][-1]["peak"]
            yield algorithm, sum(parts.values()) - WORKSPACE_MIB, peak


def save(model: Model, directory: str) -> Any:
    """Write a model with random weights; its configuration."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=model.vocabulary,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        intermediate_size=model.inner,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return config


def case(model: Model, directory: str, estimator: str, rank: int | None) -> dict[str, Any]:
    """What the measurement is asked: two micro-batches at their limits."""
    return {
        "model": directory,
        "vocabulary": model.vocabulary,
        "lora": rank and {"r": rank},
        "episodes": max(4, 2 * model.microbatch // (PROMPT + REPLY)),
        "tokens": (PROMPT, REPLY),
        "training": {
            "max_tokens_per_microbatch": model.microbatch,
            "head_chunk_tokens": model.chunk,
            "advantage_estimator": estimator,
        },
    }


if __name__ == "__main__":
    main()
