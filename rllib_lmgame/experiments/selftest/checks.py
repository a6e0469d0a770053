"""What only GPUs can show, tried by ``rllib doctor --gpu``. Without one, checks run in their CPU form.

A check is a function of a :class:`Setting` that returns what it measured. Most are short training runs, whose sampler
and learner disagree if weights did not arrive. :data:`CHECKS` lists them; ``running`` gives each its own process.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

TINY = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128}
LARGER = {"hidden_size": 896, "num_layers": 24, "num_heads": 14, "num_kv_heads": 2, "intermediate_size": 4864}
"""Qwen2.5-0.5B but for its vocabulary."""
ITERATIONS = 3


@dataclass(frozen=True)
class Setting:
    """Where a check runs, and on what.

    Attributes:
        gpus: GPUs of this machine that it may use; 0: the CPU form.
        model: What ``language_model.model`` takes; ``None``: one with random weights, larger on GPUs.
        directory: For whatever it writes.
    """

    gpus: int
    model: str | None
    directory: Path

    @property
    def gap(self) -> float:
        """What sampler and learner may differ by, in nats per token on average: rounding, and nothing more.

        On a CPU float32 and bfloat16 are 0.04 apart for :data:`LARGER` with random weights; trained ones differ less.
        """
        return (0.1 if self.model is None else 0.05) if self.gpus else 1e-4

    @property
    def language_model(self) -> dict[str, Any]:
        """The model as a ``language_model`` section names it."""
        if self.model is not None:
            return {"model": self.model}
        return {"model": "tiny", "tiny": LARGER if self.gpus else TINY}


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


def train(setting: Setting, **changes: Any) -> list[Measured]:
    """``rllib train file`` on a file that is written here: what its results say. ``changes`` are sections of it."""
    from rllib_lmgame.experiments.results.files import RESULT_FILE, json_lines

    file, results = setting.directory / "selftest.yaml", setting.directory / "results"
    file.write_text(json.dumps(file_of(setting, changes)), encoding="utf-8")
    command = [sys.executable, "-m", "rllib_lmgame.cli", "train", "file", str(file), "--storage-path", str(results)]
    status = subprocess.run([*command, "--no-ray-ui"], stdout=2, check=False).returncode
    if status:
        raise RuntimeError(f"`rllib train file` ended with {status}")
    return judged(list(json_lines(next(results.glob(f"selftest/*/{RESULT_FILE}")))), setting)


def file_of(setting: Setting, changes: dict[str, Any]) -> dict[str, Any]:
    """The experiment, as YAML has it."""
    gpus, changes = setting.gpus > 0, dict(changes)
    experiment = {
        "run": changes.pop("run", "LMGamePPO"),
        "env": "lmgame/FrozenLake-v0",
        "stop": {"training_iteration": ITERATIONS},
        "checkpoint_config": {"checkpoint_at_end": False},
    }
    beside = {"num_gpus_per_engine": 0.4, "gpu_memory_utilization": 0.35, "dtype": "bfloat16"}
    config: dict[str, Any] = {
        "seed": 0,
        "env_config": {"split": "train", "max_turns": 3, "show_rules": False},
        "language_model": setting.language_model
        | {"max_tokens_per_turn": 128 if gpus else 16, "context_length": 2048 if gpus else 512},
        "inference": {"engine": "vllm", "max_num_seqs": 256 if gpus else 32} | (beside if gpus else {}),
        "text_rollouts": {"episodes_per_iteration": 256 if gpus else 16},
        "token_ppo": {
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
    for key, value in changes.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    return {"selftest": {**experiment, "config": config}}


def judged(results: list[dict[str, Any]], setting: Setting) -> list[Measured]:
    """What the iterations of a run say: the gap before and after pushes, times and speeds."""
    if len(results) < ITERATIONS:
        raise RuntimeError(f"{ITERATIONS - len(results)} of {ITERATIONS} iterations have no result")

    def number(values: Any, name: str) -> float:
        value = values.get(name)
        return float(value) if isinstance(value, int | float) else math.nan

    learner, last = [result["learners"]["player"] for result in results], results[-1]
    gaps = [number(each, "logprob_diff_mean") for each in learner]
    return [
        Measured("gap, weights as loaded", gaps[0], "nats", high=setting.gap),
        Measured("gap, trained weights", max(gaps[1:]), "nats", high=setting.gap),
        Measured("steps without a finite gradient", sum(number(each, "nan_steps") for each in learner), high=0),
        Measured("norm of the gradient", number(learner[-1], "grad_norm"), low=1e-9),
        Measured("rollout", number(last["env_runners"], "generated_tokens_per_s"), "tokens/s"),
        Measured("update", number(learner[-1], "num_row_tokens") / number(learner[-1], "update_s"), "tokens/s"),
        Measured("push", number(last["timers"], "weight_sync_s"), "s"),
    ]


def zero3(setting: Setting) -> list[Measured]:
    """Two learners divide weights, gradients and optimizer; over NCCL on two cards, over gloo on a CPU."""
    changes: dict[str, Any] = {"deepspeed": {"zero_optimization": {"stage": 3}}}
    if setting.gpus:
        changes = {"deepspeed": changes["deepspeed"] | {"bf16": {"enabled": True}}}
        changes["language_model"] = {"dtype": "bfloat16"}
    return train(setting, num_learners=2, **changes)


def engines(**options: Any) -> Callable[[Setting], list[Measured]]:
    """A training run with these options of ``inference``; engines that take whole cards leave one to the learner."""
    if options.get("num_gpus_per_engine", 0) >= 1:
        return partial(train, inference=options, num_gpus_per_learner=1)
    return partial(train, inference=options)


@dataclass(frozen=True)
class Check:
    """One check: what is tried on GPUs and ``on_cpu`` (empty if nothing can be), and the GPUs, memory of each, and
    modules that it needs.
    """

    name: str
    run: Callable[[Setting], list[Measured]]
    about: str
    on_cpu: str = ""
    gpus: int = 1
    card_gib: float = 20.0
    packages: tuple[str, ...] = ("vllm",)


_WHOLE = {"num_gpus_per_engine": 1, "gpu_memory_utilization": 0.6}
_SPLIT = {"num_gpus_per_engine": 2, "gpu_memory_utilization": 0.6, "tensor_parallel_size": 2}
_LORA: dict[str, Any] = {
    "run": "LMGameGRPO",
    "lr": 5e-3,
    "text_rollouts": {"group_size": 8},
    "language_model": {"lora": {"r": 16, "alpha": 32}},
    "inference": {"adapters": True},
}
_ADAPTERS, _ZERO = "LoRA by GRPO: adapters pushed to the engine", "two learners by ZeRO stage 3"
CHECKS = (
    Check("training", train, "PPO, weights through the object store: gap and speeds", "PPO: gap and speeds"),
    Check(
        "sdpa",
        partial(train, language_model={"attn_implementation": "sdpa"}, text_rollouts={"group_size": 4}),
        "PPO, the learner's attention by SDPA, with shared prompts",
        "PPO, the learner's attention by SDPA, with shared prompts",
    ),
    Check("push-ipc", engines(weight_transport="ipc"), "PPO, weights by CUDA IPC, on one card"),
    Check("push-nccl", engines(weight_transport="nccl", **_WHOLE), "PPO, weights by NCCL, from card to card", gpus=2),
    Check("sleep", engines(sleep_during_update=True), "PPO, an engine that sleeps while the learner trains"),
    Check("tensor-parallel", engines(**_SPLIT), "PPO, an engine on two cards", gpus=3),
    Check("adapters", partial(train, **_LORA), _ADAPTERS, _ADAPTERS, packages=("vllm", "peft")),
    Check("zero3", zero3, f"{_ZERO} over NCCL", f"{_ZERO} over gloo", gpus=2, packages=("vllm", "deepspeed")),
)
