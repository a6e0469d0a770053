"""Short training runs: ``rllib train file`` on a file that is written here, and what its results and memory say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rllib_lmgame.experiments.acceptance.checks import Measured, Setting
from rllib_lmgame.experiments.acceptance.engines import SHARE, used_gib

NAME = "acceptance"
ITERATIONS = 3
LOOK_EVERY_S = 0.5
SHARED = {"num_learners": 1, "num_gpus_per_learner": 0.6}
ENGINE_BESIDE = {"num_gpus_per_engine": 0.4, "gpu_memory_utilization": SHARE, "dtype": "bfloat16"}


def training(setting: Setting) -> list[Measured]:
    """All weights, by PPO with a critic: one learner and one engine, on one card."""
    return _trained(setting, {}, memory=True)


def adapters(setting: Setting) -> list[Measured]:
    """LoRA: the engine holds the base and gets the adapter alone."""
    lora = {"language_model": {"lora": {"r": 16, "alpha": 32}}, "inference": {"adapters": True}}
    return _trained(setting, lora | {"run": "LMGameGRPO", "lr": 5e-3, "text_rollouts": {"group_size": 8}})


def zero3(setting: Setting) -> list[Measured]:
    """Two learners divide weights, gradients and optimizer; over NCCL on two cards, over gloo on a CPU."""
    deepspeed: dict[str, Any] = {"zero_optimization": {"stage": 3}}
    changes: dict[str, Any] = {"num_learners": 2, "deepspeed": deepspeed}
    if setting.half:
        deepspeed["bf16"] = {"enabled": True}
        changes["language_model"] = {"dtype": "bfloat16"}
    return _trained(setting, changes)


def file_of(setting: Setting, changes: dict[str, Any]) -> dict[str, Any]:
    """The experiment, as YAML has it; ``changes`` are keys of ``config`` (and ``run``), sections one by one."""
    gpus = setting.gpus > 0
    config: dict[str, Any] = {
        "seed": 0,
        "env_config": {"split": "train", "max_turns": 3, "show_rules": False},
        "language_model": setting.language_model
        | {"max_tokens_per_turn": 128 if gpus else 16, "context_length": 2048 if gpus else 512},
        "inference": {"engine": "vllm", "max_num_seqs": 256 if gpus else 32} | (ENGINE_BESIDE if gpus else {}),
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
        **(SHARED if gpus else {"num_learners": 0}),
    }
    run = changes.get("run", "LMGamePPO")
    for key, value in changes.items():
        if key != "run":
            config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    return {
        NAME: {
            "run": run,
            "env": "lmgame/FrozenLake-v0",
            "stop": {"training_iteration": ITERATIONS},
            "checkpoint_config": {"checkpoint_at_end": False},
            "config": config,
        }
    }


def _trained(setting: Setting, changes: dict[str, Any], memory: bool = False) -> list[Measured]:
    file = setting.directory / "acceptance.yaml"
    file.write_text(json.dumps(file_of(setting, changes)), encoding="utf-8")
    watch = Memory() if memory and setting.gpus else None
    with watch or nullcontext():
        results = run_file(file, setting.directory / "results")
    found = judged(results, setting)
    if watch is not None:
        estimate = estimated_gib(file, setting)
        found += [
            Measured("peak of memory", watch.peak, "GiB"),
            Measured("peak over the dry run's estimate", watch.peak / estimate, "times", low=0.2, high=1.25),
        ]
    return found


def run_file(file: Path, results: Path) -> list[dict[str, Any]]:
    """Train, and give the results of each iteration. Raises: RuntimeError: with the end of what the run said."""
    from rllib_lmgame.experiments.results.files import RESULT_FILE, json_lines

    command = [sys.executable, "-m", "rllib_lmgame.cli", "train", "file", str(file), "--storage-path", str(results)]
    status = subprocess.run([*command, "--no-ray-ui"], stdout=2, check=False).returncode
    if status:
        raise RuntimeError(f"`rllib train file` ended with {status}")
    return list(json_lines(next(results.glob(f"{NAME}/*/{RESULT_FILE}"))))


def judged(results: list[dict[str, Any]], setting: Setting) -> list[Measured]:
    """What the iterations of a run say: the gap before and after pushes, times and speeds."""
    missing = ITERATIONS - len(results)
    if missing:
        raise RuntimeError(f"{missing} of {ITERATIONS} iterations have no result")
    learner = [result["learners"]["player"] for result in results]
    last = results[-1]
    return [
        Measured("gap, weights as loaded", _number(learner[0], "logprob_diff_mean"), "nats", high=setting.gap),
        Measured(
            "gap, trained weights",
            max(_number(each, "logprob_diff_mean") for each in learner[1:]),
            "nats",
            high=setting.gap,
        ),
        Measured("steps without a finite gradient", sum(_number(each, "nan_steps") for each in learner), high=0),
        Measured("norm of the gradient", _number(learner[-1], "grad_norm"), low=1e-9),
        Measured("rollout", _number(last["env_runners"], "generated_tokens_per_s"), "tokens/s"),
        Measured("update", _number(learner[-1], "num_row_tokens") / _number(learner[-1], "update_s"), "tokens/s"),
        Measured("push", _number(last["timers"], "weight_sync_s"), "s"),
    ]


def _number(values: Any, name: str) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def estimated_gib(file: Path, setting: Setting) -> float:
    """What ``--dry-run`` says of the card for the same file."""
    from rllib_lmgame.algorithms.cluster.footprint import machine_mib
    from rllib_lmgame.experiments.checks.check import check_experiments
    from rllib_lmgame.experiments.checks.resources import footprints_here
    from rllib_lmgame.experiments.files.reading import read_experiments

    (experiment,) = check_experiments(read_experiments(str(file)))
    taken = next(footprints_here(experiment, machine_mib()))
    learners = sum(each.each for each in taken.processes if each.gpus and each.name.startswith("learner")) / 1024
    return learners + SHARE * setting.card_gib


class Memory:
    """The most that a run takes of a card while it is watched, in GiB."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._before = used_gib()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.peak = max(self.peak, used_gib() - self._before)
