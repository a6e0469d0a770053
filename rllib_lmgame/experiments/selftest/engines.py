"""Engines beside a learner's module: the same log-probabilities, weights that arrive, sleep.

Weights are changed so far that an engine which kept its old ones is seen: what the learner makes of replies moves by
more than five times what both may differ by.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rllib_lmgame.experiments.selftest.checks import Measured, Setting
from rllib_lmgame.experiments.selftest.learner_side import CONTEXT, LearnerSide, model_directory_of, vocabulary_of

REQUESTS, PROMPT, REPLY = 16, 64, 48
SHARE = 0.35
"""Of a card, for an engine that has a learner beside it."""


class Bench:
    """Engines and a learner's module on one model."""

    def __init__(self, setting: Setting, group: Any, learner: Any, directory: str) -> None:
        self.setting, self.group, self._learner = setting, group, learner
        rng, most = np.random.default_rng(0), vocabulary_of(directory)
        rules = rng.integers(3, most, PROMPT).tolist()
        self.prompts = [rules + rng.integers(3, most, 8 + number).tolist() for number in range(REQUESTS)]

    def ask(self, tag: str, scored: Sequence[np.ndarray] | None = None) -> list[Any]:
        """A reply to each prompt, or what the engines make of the ``scored`` ones. Raises: RuntimeError: none came."""
        from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec
        from rllib_lmgame.inference.serving.client import EngineClient

        given = [None if scored is None else tuple(map(int, scored[n])) for n in range(len(self.prompts))]
        spec = SamplingSpec(REPLY)
        requests = [
            GenerationRequest(f"{tag}/{number}", prompt, spec, scored=given[number])
            for number, prompt in enumerate(self.prompts)
        ]

        async def run() -> list[Any]:
            client = EngineClient(self.group.names, request_timeout_s=120.0)
            return list(await asyncio.gather(*(client.generate(request) for request in requests)))

        replies = asyncio.run(run())
        failed = next((reply.error for reply in replies if reply.error is not None), None)
        if failed is not None:
            raise RuntimeError(failed)
        return replies

    def learner(self, method: str, *arguments: Any) -> Any:
        """What a method of the :class:`LearnerSide` returns."""
        import ray

        return ray.get(getattr(self._learner, method).remote(*arguments))

    def recomputed(self, replies: Sequence[Any]) -> np.ndarray:
        """The learner's log-probabilities of replies, end to end."""
        found: np.ndarray = self.learner("logprobs", self.prompts, [reply.response_ids for reply in replies])
        return found

    def gap(self, tag: str, name: str) -> tuple[Measured, list[Any]]:
        """How far engine and learner are apart on new replies."""
        replies = self.ask(tag)
        sampled = np.concatenate([reply.logprobs for reply in replies])
        away = np.abs(sampled - self.recomputed(replies))
        return Measured(name, float(away.mean()), "nats", high=self.setting.gap), replies

    def push(self, version: int, over: str) -> Any:
        """The learner's weights to the engines, as training sends them."""
        if over == "object_store":
            return self.group.push(self.learner("packed", version), version)
        result = self.learner("send", self.group.learner_push(), version)
        self.group.note_device_push(version)
        return result


@contextmanager
def bench(
    setting: Setting, *, engines: int = 1, split: int = 1, over: str = "object_store", sleeps: bool = False
) -> Iterator[Bench]:
    """Start engines and the learner's module, and end them.

    On GPUs one of each shares a card, unless engines are split or reached over NCCL, which take whole ones.
    """
    import ray

    from rllib_lmgame.algorithms.cluster.ray_cluster import shut_down, start_local
    from rllib_lmgame.inference.options import InferenceOptions
    from rllib_lmgame.inference.serving.group import EngineGroup

    directory, gpus = model_directory_of(setting), setting.gpus
    whole = split > 1 or over == "nccl"
    left = gpus - engines * split if whole else 0.5 * bool(gpus)
    options = InferenceOptions(
        num_engines=engines,
        num_gpus_per_engine=(split if whole else 0.4) if gpus else 0,
        tensor_parallel_size=split,
        gpu_memory_utilization=0.6 if whole else SHARE,
        dtype="bfloat16" if setting.half else "float32",
        max_num_seqs=64,
        enforce_eager=True,
        weight_transport=over,
        sleep_during_update=sleeps,
    )
    start_local(num_cpus=8, num_gpus=gpus, include_dashboard=False, log_to_driver=False)
    try:
        group = EngineGroup.create("selftest", directory, options, CONTEXT)
        place = ray.remote(LearnerSide).options(num_cpus=1, num_gpus=min(1.0, left))
        yield Bench(
            setting, group, place.remote(directory, left > 0, "bfloat16" if setting.half else "float32"), directory
        )
        group.shutdown()
    finally:
        shut_down()


def object_store(setting: Setting) -> list[Measured]:
    """Through Ray's object store to two engines on a CPU, to one on a GPU."""
    return _pushed(setting, engines=1 if setting.gpus else 2)


def ipc(setting: Setting) -> list[Measured]:
    """Between processes on one card."""
    return _pushed(setting, over="ipc")


def nccl(setting: Setting) -> list[Measured]:
    """From card to card; two engines where there are three cards."""
    return _pushed(setting, over="nccl", engines=min(2, setting.gpus - 1))


def tensor_parallel(setting: Setting) -> list[Measured]:
    """An engine on two cards; the learner is on a third one, or on the CPU."""
    return _pushed(setting, split=2)


def _pushed(setting: Setting, *, engines: int = 1, split: int = 1, over: str = "object_store") -> list[Measured]:
    """Gap as loaded; then weights that are far away are pushed: gap and time."""
    with bench(setting, engines=engines, split=split, over=over) as on:
        loaded, first = on.gap("loaded", "gap, weights as loaded")
        old = on.recomputed(first)
        on.push(1, over)  # Connects, too.
        on.learner("change", 1)
        moved = float(np.abs(on.recomputed(first) - old).mean())
        result = on.push(2, over)
        return [
            loaded,
            Measured("how far the new weights are away", moved, "nats", low=setting.far),
            on.gap("pushed", "gap, new weights")[0],
            Measured("push", result.seconds, "s"),
            Measured("push", result.num_bytes / 2**20 / result.seconds, "MiB/s"),
        ]


def sleep(setting: Setting) -> list[Measured]:
    """An engine gives its memory back and takes it again, with the same weights in it."""
    with bench(setting, sleeps=True) as on:
        replies = [reply.response_ids for reply in on.ask("first")]
        before, used = on.ask("before", scored=replies), used_gib()
        on.group.call("sleep")
        asleep = used_gib()
        on.group.call("wake_up")
        after = on.ask("after", scored=replies)
        away = np.abs(np.concatenate([a.logprobs - b.logprobs for a, b in zip(after, before, strict=True)]))
        return [
            Measured("memory given back", used - asleep, "GiB", low=0.5 * SHARE * setting.card_gib),
            Measured("log-probabilities before and after", float(away.mean()), "nats", high=setting.gap),
        ]


def used_gib() -> float:
    """Memory taken of the first card that this process may use, as its driver says."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    asked = ["nvidia-smi", f"--id={first}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return float(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]) / 1024
