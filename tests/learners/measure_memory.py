"""Updates of small models one after the other; prints what each took.

    python tests/learners/measure_memory.py '[{"model": DIRECTORY, "vocabulary": 512, "episodes": 32,
        "tokens": [192, 64], "training": {"max_tokens_per_microbatch": 4096, "head_chunk_tokens": 512}}]'

A process of its own, in which blocks of 128 KiB and more go back to the system when they are freed: what is resident is
what is in use, and the same in every run (to half a MiB). Learners themselves let the C library keep freed blocks,
whose fragments take 50 to 170 MiB more of it, another number in every run. That is tried at the end.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import conftest
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # Makers of episodes, which pytest finds through tests/conftest.py.

from rllib_lmgame.learners import learner as learner_module
from rllib_lmgame.learners.process import give_back_memory, keep_freed_memory

GIVEN_BACK_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(1 << 17), "MALLOC_TRIM_THRESHOLD_": str(1 << 17)}


def status_mib(field: str) -> float:
    """A line of this process's ``/proc/self/status``."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def peak_mib() -> float:
    """The most memory that no file backed: by the kernel's own mark, which misses nothing however busy the machine
    is.
    """
    return status_mib("VmHWM") - status_mib("RssFile") - status_mib("RssShmem")


def episodes(count: int, prompt: int, reply: int, vocabulary: int, legal: bool, same_prompt: int = 1) -> list[Any]:
    """Episodes of one turn in two groups of a game, ``legal``: their tokens drawn among few.

    So many behind each other have one prompt.
    """
    rng, found, asked = np.random.default_rng(0), [], np.zeros(0, np.int32)
    for number in range(count):
        ids = rng.integers(0, vocabulary, prompt + reply).astype(np.int32)
        asked = ids[:prompt] if number % same_prompt == 0 else asked
        ids[:prompt] = asked
        turn = conftest.Turn(
            ids[:prompt], ids[prompt:], np.full(reply, -3.0, np.float32), reward=float(rng.normal()), new_row=True
        )
        turn.allowed = conftest.random_allowed(rng, turn.response_ids) if legal else None
        found.append(conftest.single(conftest.Trajectory([turn], terminated=True, module_id="player")))
        part = found[-1].agent_episodes["player"]
        part.custom_data["lmgame"].group, part.custom_data["lmgame"].game = f"g{len(found) % 2}", "game"
    return found


def build(case: dict[str, Any]) -> Any:
    """A learner in this process."""
    make_config = getattr(conftest.make_config, "__wrapped__", None) or conftest.make_config._fixture_function
    config = make_config("")(
        model_dir=case["model"],
        options={"context_length": 4096, "lora": case.get("lora")},
        training={"num_minibatches": 1} | case["training"],
        deepspeed=case.get("deepspeed"),
        critic=case["training"].get("advantage_estimator") != "grpo",
    )
    learner = config.learner_class(config=config, module_spec=config.rl_module_spec)
    learner.build()
    if case.get("lora"):  # Frozen weights are never written to, and stay pages of their file, which are not counted.
        for parameter in learner.module["player"].parameters():
            parameter.data = parameter.data.clone()
    return learner


def main(cases: list[dict[str, Any]]) -> None:
    """Train and print MiB beyond what this process took before: at each case's peak, after it, and after the first case
    once more, with a learner that keeps freed memory.

    The peaks of the cases must rise. The first model is so small that having built it counts as nothing.
    """
    if any(case.get("deepspeed") for case in cases):
        import deepspeed  # noqa: F401

    found, before = [], 0.0
    learner_module.keep_freed_memory = bool  # For the time being.
    for case in cases:
        learner = build(case)
        gc.collect()
        before = before or status_mib("RssAnon")
        update(learner, case)
        found.append({"peak": peak_mib() - before, "after": status_mib("RssAnon") - before})
        del learner
        gc.collect()
        give_back_memory(keep=0)
    learner_module.keep_freed_memory = keep_freed_memory
    learner = build(cases[0])
    update(learner, cases[0])
    print(json.dumps({"cases": found, "kept": status_mib("RssAnon") - before}))


def update(learner: Any, case: dict[str, Any]) -> None:
    """Two updates, since the first one makes the optimizer's states."""
    for count in (4, case["episodes"]):
        told = case["vocabulary"], case.get("legal", False), case.get("same_prompt", 1)
        learner.update(episodes=episodes(count, *case["tokens"], *told))


if __name__ == "__main__":
    if not GIVEN_BACK_AT_ONCE.items() <= os.environ.items():
        # Read when a process starts.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | GIVEN_BACK_AT_ONCE)
    main(json.loads(sys.argv[1]))
