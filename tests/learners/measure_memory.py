"""Two updates of a small model with a large vocabulary; prints what they took. A process of its own: memory that others freed would count."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def status_mib(field: str) -> float:
    """A line of this process's ``/proc/self/status``."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def peak_mib() -> float:
    """The most memory that no file backed: by the kernel's own mark, which misses nothing however busy the machine is."""
    return status_mib("VmHWM") - status_mib("RssFile") - status_mib("RssShmem")


def episodes(count: int, prompt: int, reply: int, vocabulary: int) -> list[Any]:
    """Episodes of one turn."""
    from conftest import Trajectory, Turn, episode_of

    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        ids = rng.integers(0, vocabulary, prompt + reply).astype(np.int32)
        turn = Turn(ids[:prompt], ids[prompt:], np.full(reply, -3.0, np.float32), reward=float(rng.normal()), new_row=True)
        found.append(episode_of(Trajectory([turn], terminated=True, module_id="player")))
    return found


def main(directory: str, config: Any) -> None:
    """Train and print."""
    learner = config.learner_class(config=config, module_spec=config.rl_module_spec)
    learner.build()
    gc.collect()
    before = status_mib("RssAnon")
    for _ in range(2):
        learner.update(episodes=episodes(8, 64, 64, 151_936))
    print(json.dumps({"before": before, "peak": peak_mib(), "after": status_mib("RssAnon")}))


if __name__ == "__main__":
    import conftest

    make_config = conftest.make_config.__wrapped__ if hasattr(conftest.make_config, "__wrapped__") else conftest.make_config._fixture_function
    limits = {"max_tokens_per_microbatch": 512, "head_chunk_tokens": 128, "num_minibatches": 1}
    main(sys.argv[1], make_config("")(model_dir=sys.argv[1], token_ppo=limits))
