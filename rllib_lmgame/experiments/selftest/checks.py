"""What only GPUs can show, tried by ``rllib doctor --gpu``. Without one, checks run in their CPU form.

A check is a short training run with :attr:`Check.changes`: if weights did not arrive, its sampler and learner disagree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rllib_lmgame.base.numerics import computed_in
from rllib_lmgame.policies.model.files import local_config

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
        resumes: The run writes a checkpoint, and goes on from it for one more iteration.
        trained: Iterations of the run before that.
        judge: What the results say; ``None``: what :func:`judged` finds in those of any run.
    """

    name: str
    about: str
    changes: dict[str, Any] = field(default_factory=dict)
    on_cpu: str = ""
    gpus: int = 1
    card_gib: float = 20.0
    packages: tuple[str, ...] = ("vllm",)
    on_gpus: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False
    trained: int = ITERATIONS
    judge: Callable[[Sequence[dict[str, Any]]], list[Measured]] | None = None

    @property
    def iterations(self) -> int:
        """Results that its run must have."""
        return self.trained + self.resumes


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
    experiment: dict[str, Any] = {
        "run": "LMGamePPO",
        "env": "lmgame/FrozenLake-v0",
        "stop": {"training_iteration": check.trained},
        "checkpoint_config": {"checkpoint_at_end": check.resumes},
    }
    for key, value in [*check.changes.items(), *(check.on_gpus if gpus else {}).items()]:
        section = experiment if key in experiment else config
        section[key] = {**section.get(key, {}), **value} if isinstance(value, dict) else value
    if "games" in config:
        del experiment["env"], config["env_config"]
    return {"selftest": {**experiment, "config": config}}


@dataclass(frozen=True)
class Peaks:
    """What a device can do, as measured: operations per second of large matrix products, bytes per second read."""

    flops: float
    bytes_per_s: float

    @classmethod
    def measure(cls) -> Peaks:
        """Those of this process's first GPU in bfloat16; of one CPU thread in float32 without one."""
        import torch

        on_gpu = torch.cuda.is_available()
        size, device, dtype = (8192, "cuda", torch.bfloat16) if on_gpu else (1024, "cpu", torch.float32)
        wide = torch.rand(size, size, device=device).to(dtype)
        long = torch.rand(size * 8192 * (4 if on_gpu else 1), device=device)

        def seconds(call: Callable[[], Any], times: int = 10) -> float:
            call().flatten()[0].item()  # The device has finished when a value of the result is here.
            began = time.perf_counter()
            for _ in range(times - 1):
                call()
            call().flatten()[0].item()
            return (time.perf_counter() - began) / times

        with torch.inference_mode():
            return cls(2 * size**3 / seconds(lambda: wide @ wide), long.nbytes / seconds(lambda: long.sum()))


def judged(results: Sequence[dict[str, Any]], gpus: bool, model: str | None, peaks: Peaks | None) -> list[Measured]:
    """What the iterations of a run say: the gap before and after pushes, times, and how near they come to ``peaks``.

    Sampler and learner may differ by rounding and nothing more, in nats per token on average. On a CPU float32 and
    bfloat16 are 0.04 apart for :data:`LARGER` with random weights; trained ones differ less.
    """

    def number(values: Any, name: str) -> float:
        value = values.get(name)
        return float(value) if isinstance(value, int | float) else math.nan

    learners = [[each for name, each in result["learners"].items() if name != "__all_modules__"] for result in results]
    gaps = [max(number(each, "logprob_diff_mean") for each in learnt) for learnt in learners]
    every, (last, *_), result = [each for learnt in learners for each in learnt], learners[-1], results[-1]
    trained, frozen = (number(last, f"num_{which}_parameters") for which in ("trainable", "non_trainable"))
    exact = computed_in("auto", lambda: trained + frozen, gpus) == "float32"
    gap = 1e-4 if exact else 0.1 if model is None else 0.05
    found = [
        Measured("gap, weights as loaded", gaps[0], "nats", high=gap),
        Measured("gap, trained weights", max(gaps[1:]), "nats", high=gap),
        Measured("steps without a finite gradient", sum(number(each, "nan_steps") for each in every), high=0),
        Measured("norm of the gradient", number(last, "grad_norm"), low=1e-9),
        Measured("rollout", number(result["env_runners"], "generated_tokens_per_s"), "tokens/s"),
        Measured("update", number(last, "num_row_tokens") / number(last, "update_s"), "tokens/s"),
        Measured("push", number(result["timers"], "weight_sync_s"), "s"),
        Measured("iteration", number(result, "time_this_iter_s"), "s"),
    ]
    mixture = getattr(local_config(model or ""), "num_experts_per_tok", None)  # Of its weights a token takes some.
    if peaks is not None and not mixture and (gpus or exact) and len(learners[-1]) == 1:  # A CPU's are float32's.
        flops = (6 * trained + 4 * frozen) * number(last, "num_computed_tokens")
        steps = number(result["env_runners"], "turns_per_episode") * number(result["env_runners"], "tokens_per_turn")
        limit = flops / peaks.flops + steps * (trained + frozen) * (2 if gpus else 4) / peaks.bytes_per_s
        used = flops / number(last, "update_s") / peaks.flops
        found.append(Measured("update over matrix products of this device (MFU)", used))
        found.append(Measured("iteration over the device's limit", number(result, "time_this_iter_s") / limit))
    return found


_WHOLE = {"num_gpus_per_engine": 1, "gpu_memory_utilization": 0.6}
"""An engine on a card of its own, which leaves one to the learner."""
_BF16 = {"deepspeed": {"bf16": {"enabled": True}}, "language_model": {"dtype": "bfloat16"}}
_ADAPTERS, _ZERO = "LoRA by GRPO: adapters pushed to the engine", "two learners by ZeRO stage 3"
_SDPA = "PPO, the learner's attention by SDPA, with shared prompts"
_DEEPSPEED = "PPO by DeepSpeed (ZeRO 2) with recomputation and a KL reference; a checkpoint, and on from it"
CHECKS = (  # In the order of what settles most, should somebody have minutes only.
    Check(
        "push-ipc",
        "PPO, weights by CUDA IPC into an engine that sleeps while the learner trains, on one card",
        {"inference": {"weight_transport": "ipc", "sleep_during_update": True}},
    ),
    Check(
        "deepspeed",
        f"{_DEEPSPEED}, in bf16, with sleep and CUDA IPC",
        {
            "deepspeed": {"zero_optimization": {"stage": 2}},
            "language_model": {"gradient_checkpointing": True},
            "training": {"kl": {}},
        },
        on_cpu=_DEEPSPEED,
        packages=("vllm", "deepspeed"),
        on_gpus=_BF16 | {"inference": {"weight_transport": "ipc", "sleep_during_update": True}},
        resumes=True,
    ),
    Check(
        "two-engines",
        "two policies that play each other, their two engines on one card",
        {"env": "lmgame/IteratedPrisonersDilemma-v0", "policies": ["row", "column"], "policy_mapping_fn": "per_role"},
        on_cpu="two policies that play each other, each with an engine",
        on_gpus={"inference": {"num_gpus_per_engine": 0.2, "gpu_memory_utilization": 0.18}},
    ),
    Check(
        "offload",
        "PPO by DeepSpeed (ZeRO 2) with the optimizer on the host, weights too while games are played",
        {"deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}},
        packages=("vllm", "deepspeed"),
        on_gpus=_BF16 | {"inference": {"sleep_during_update": True}, "training": {"offload_during_rollout": True}},
    ),
    Check(
        "sdpa",
        _SDPA,
        {"language_model": {"attn_implementation": "sdpa"}, "text_rollouts": {"group_size": 4}},
        on_cpu=_SDPA,
    ),
    Check("training", "PPO, weights through the object store: gap and speeds", on_cpu="PPO: gap and speeds"),
    Check("prefill", "PPO with prefills of 16,384 tokens", {"inference": {"max_num_batched_tokens": 16_384}}),
    Check("synchronous", "PPO without asynchronous scheduling", {"inference": {"async_scheduling": False}}),
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
        "push-nccl",
        "PPO, weights by NCCL, from card to card",
        {"inference": {"weight_transport": "nccl", **_WHOLE}, "num_gpus_per_learner": 1},
        gpus=2,
    ),
    Check(
        "zero3",
        f"{_ZERO} over NCCL",
        {"num_learners": 2, "deepspeed": {"zero_optimization": {"stage": 3}}},
        on_cpu=f"{_ZERO} over gloo",
        gpus=2,
        packages=("vllm", "deepspeed"),
        on_gpus=_BF16,
    ),
    Check(
        "tensor-parallel",
        "PPO, an engine on two cards",
        {"inference": {**_WHOLE, "num_gpus_per_engine": 2, "tensor_parallel_size": 2}, "num_gpus_per_learner": 1},
        gpus=3,
    ),
)
