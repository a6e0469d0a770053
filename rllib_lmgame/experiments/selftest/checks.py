"""What only GPUs can show, tried by ``rllib doctor --gpu``. Without one, checks run in their CPU form.

A check is a short training run with :attr:`Check.changes`: if weights did not arrive, its sampler and learner disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

TINY = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128}
LARGER = {"hidden_size": 896, "num_layers": 24, "num_heads": 14, "num_kv_heads": 2, "intermediate_size": 4864}
"""Qwen2.5-0.5B but for its vocabulary."""
ITERATIONS = 3


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        about: What is tried on GPUs.
        changes: Sections of the run's file, ``on_gpus`` further ones there.
        on_cpu: What is tried without GPUs; empty if nothing can be.
        gpus, card_gib, packages: What it needs: GPUs, memory of each, and modules.
    """

    name: str
    about: str
    changes: dict[str, Any] = field(default_factory=dict)
    on_cpu: str = ""
    gpus: int = 1
    card_gib: float = 20.0
    packages: tuple[str, ...] = ("vllm",)
    on_gpus: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """One number; ``low`` and ``high`` are what it must lie between, both included, where there is a bound."""

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it lies within its bounds; what is no finite number never does."""
        if self.low is None and self.high is None:
            return True
        above = self.low is None or self.value >= self.low
        return math.isfinite(self.value) and above and (self.high is None or self.value <= self.high)

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold; a number that is not finite becomes ``null``."""
        ends = [f"at {most} {end:g}" for most, end in (("least", self.low), ("most", self.high)) if end is not None]
        value = self.value if math.isfinite(self.value) else None
        return {**asdict(self), "value": value, "bounds": " and ".join(ends), "ok": self.ok}


def file_of(check: Check, gpus: bool, model: str | None) -> dict[str, Any]:
    """The experiment file of a check; without a ``model`` it has random weights, more of them on GPUs."""
    beside = {"num_gpus_per_engine": 0.4, "gpu_memory_utilization": 0.35, "dtype": "bfloat16"}
    named: dict[str, Any] = {"model": "tiny", "tiny": LARGER if gpus else TINY} if model is None else {"model": model}
    config: dict[str, Any] = {
        "seed": 0,
        "env_config": {"split": "train", "max_turns": 3, "show_rules": False},
        "language_model": named | {"max_tokens_per_turn": 128 if gpus else 16, "context_length": 2048 if gpus else 512},
        "inference": {"engine": "vllm", "max_num_seqs": 256 if gpus else 32} | (beside if gpus else {}),
        "text_rollouts": {"episodes_per_iteration": 256 if gpus else 16},
        "training": {
            "num_minibatches": 4,
            "max_tokens_per_microbatch": 2048 if gpus else 512,
            "max_logprob_diff": None,
        },
        "num_env_runners": 0,
        "num_envs_per_env_runner": 256 if gpus else 16,
        "lr": 1e-3,
        "entropy_coeff": 0.01,  # A gradient also where all replies earn the same.
        **({"num_learners": 1, "num_gpus_per_learner": 0.6} if gpus else {"num_learners": 0}),
    }
    changes = {**check.changes, **(check.on_gpus if gpus else {})}
    experiment = {
        "run": changes.pop("run", "LMGamePPO"),
        "env": "lmgame/FrozenLake-v0",
        "stop": {"training_iteration": ITERATIONS},
        "checkpoint_config": {"checkpoint_at_end": False},
    }
    for key, value in changes.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    return {"selftest": {**experiment, "config": config}}


def judged(results: Sequence[dict[str, Any]], gpus: bool, model: str | None) -> list[Measured]:
    """What the iterations of a run say: the gap before and after pushes, times and speeds.

    Sampler and learner may differ by rounding and nothing more, in nats per token on average. On a CPU float32 and
    bfloat16 are 0.04 apart for :data:`LARGER` with random weights; trained ones differ less.
    """

    def number(values: Any, name: str) -> float:
        value = values.get(name)
        return float(value) if isinstance(value, int | float) else math.nan

    gap = (0.1 if model is None else 0.05) if gpus else 1e-4
    learner, last = [result["learners"]["player"] for result in results], results[-1]
    gaps = [number(each, "logprob_diff_mean") for each in learner]
    return [
        Measured("gap, weights as loaded", gaps[0], "nats", high=gap),
        Measured("gap, trained weights", max(gaps[1:]), "nats", high=gap),
        Measured("steps without a finite gradient", sum(number(each, "nan_steps") for each in learner), high=0),
        Measured("norm of the gradient", number(learner[-1], "grad_norm"), low=1e-9),
        Measured("rollout", number(last["env_runners"], "generated_tokens_per_s"), "tokens/s"),
        Measured("update", number(learner[-1], "num_row_tokens") / number(learner[-1], "update_s"), "tokens/s"),
        Measured("push", number(last["timers"], "weight_sync_s"), "s"),
    ]


_WHOLE = {"num_gpus_per_engine": 1, "gpu_memory_utilization": 0.6}
"""An engine on a card of its own, which leaves one to the learner."""
_ADAPTERS, _ZERO = "LoRA by GRPO: adapters pushed to the engine", "two learners by ZeRO stage 3"
_SDPA = "PPO, the learner's attention by SDPA, with shared prompts"
CHECKS = (
    Check("training", "PPO, weights through the object store: gap and speeds", on_cpu="PPO: gap and speeds"),
    Check(
        "sdpa",
        _SDPA,
        {"language_model": {"attn_implementation": "sdpa"}, "text_rollouts": {"group_size": 4}},
        on_cpu=_SDPA,
    ),
    Check("push-ipc", "PPO, weights by CUDA IPC, on one card", {"inference": {"weight_transport": "ipc"}}),
    Check(
        "push-nccl",
        "PPO, weights by NCCL, from card to card",
        {"inference": {"weight_transport": "nccl", **_WHOLE}, "num_gpus_per_learner": 1},
        gpus=2,
    ),
    Check(
        "sleep",
        "PPO, an engine that sleeps while the learner trains",
        {"inference": {"sleep_during_update": True}},
    ),
    Check(
        "tensor-parallel",
        "PPO, an engine on two cards",
        {"inference": {**_WHOLE, "num_gpus_per_engine": 2, "tensor_parallel_size": 2}, "num_gpus_per_learner": 1},
        gpus=3,
    ),
    Check(
        "adapters",
        _ADAPTERS,
        {
            "run": "LMGameGRPO",
            "lr": 5e-3,
            "text_rollouts": {"group_size": 8},
            "language_model": {"lora": {"r": 16, "alpha": 32}},
            "inference": {"adapters": True},
        },
        on_cpu=_ADAPTERS,
        packages=("vllm", "peft"),
    ),
    Check(
        "zero3",
        f"{_ZERO} over NCCL",
        {"num_learners": 2, "deepspeed": {"zero_optimization": {"stage": 3}}},
        on_cpu=f"{_ZERO} over gloo",
        gpus=2,
        packages=("vllm", "deepspeed"),
        on_gpus={
            "deepspeed": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}},
            "language_model": {"dtype": "bfloat16"},
        },
    ),
)
