"""Two updates of a small model with a large vocabulary; prints what they took. A process of its own: memory that others freed would count."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from typing import Any

import numpy as np

PAGE_MIB = 4096 / 2**20


def memory_mib() -> float:
    """Memory of this process that no file backs."""
    fields = [int(n) for n in open("/proc/self/statm").read().split()[1:3]]  # noqa: SIM115 -- thousands of times
    return (fields[0] - fields[1]) * PAGE_MIB


class Peak:
    """Follows the memory of this process."""

    def __init__(self) -> None:
        self.highest = 0.0
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while True:
            self.highest = max(self.highest, memory_mib())
            time.sleep(0.002)


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
    before, peak = memory_mib(), Peak()
    for _ in range(2):
        learner.update(episodes=episodes(8, 64, 64, 151_936))
    print(json.dumps({"before": before, "peak": peak.highest, "after": memory_mib()}))


if __name__ == "__main__":
    import conftest

    make_config = conftest.make_config.__wrapped__ if hasattr(conftest.make_config, "__wrapped__") else conftest.make_config._fixture_function
    limits = {"max_tokens_per_microbatch": 512, "head_chunk_tokens": 128, "num_minibatches": 1}
    main(sys.argv[1], make_config("")(model_dir=sys.argv[1], token_ppo=limits))
