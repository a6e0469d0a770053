"""What tests of learners do again and again: an update, its weights, a copy that goes on, several learners at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.rollouts.records import trajectory_of

TIMES = {"update_s", "trained_tokens_per_s"}
"""Numbers of an update that no two updates have alike."""


def update(learner: Any, episodes: Any, module: str | None = "player", **how: Any) -> dict[str, Any]:
    """One update on a list of episodes or on ``WholeEpisodes``; the numbers of a module, or of all by name."""
    data = episodes if isinstance(episodes, WholeEpisodes) else WholeEpisodes(episodes=episodes)
    results = MetricsLogger.peek_results(learner.update(training_data=data, **how))
    return results if module is None else results[module]


def weights(learner: Any, module: str = "player") -> dict[str, torch.Tensor]:
    """Copies of all parameters."""
    return {name: p.detach().clone() for name, p in learner.module[module].named_parameters()}


def gradients_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the gradients of all parameters that have one."""
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def step_gradients(learner: Any, module: str = "player") -> dict[str, torch.Tensor]:
    """Filled with this learner's own gradients where its next optimizer step begins."""
    engine, found = learner.engines[module], {}
    step = engine.step

    def taken() -> Any:
        found.update(gradients_of(learner.module[module]))
        return step()

    engine.step = taken
    return found


def same(a: Any, b: Any) -> bool:
    """Whether states are equal, bit for bit."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def difference(a: Any, b: Any) -> float:
    """The largest of two states of the same names."""
    assert a.keys() == b.keys()
    return float(np.max([float(abs(a[name] - b[name]).max()) for name in a]))  # A NaN is the largest.


def moved(learner: Any, before: dict[str, torch.Tensor]) -> set[str]:
    """Parameters that are not what they were."""
    return {name for name, tensor in weights(learner).items() if not torch.equal(before[name], tensor)}


def row_logprobs(module: Any, row: Any, mask: np.ndarray | None = None) -> torch.Tensor:
    """Of the replies of one row, or of the tokens in ``mask``, in a pass of its own, among the whole vocabulary."""
    from rllib_lmgame.policies.model.attention import PackedRows

    model, ids = module.language_model, torch.as_tensor(row.input_ids).long()[None]
    with PackedRows(torch.tensor([0, ids.shape[1]])):
        hidden = model.model(ids, use_cache=False, position_ids=torch.arange(ids.shape[1])[None]).last_hidden_state[0]
    at = torch.as_tensor(row.loss_mask if mask is None else mask).nonzero().squeeze(-1)
    return model.lm_head(hidden[at - 1]).log_softmax(-1).gather(-1, ids[0, at][:, None]).squeeze(-1)


def restored(fresh: Any, learner: Any, path: Path) -> Any:
    """``fresh`` with what a checkpoint of ``learner`` has."""
    learner.save_shard(path)
    fresh.load_shard(path)
    return fresh


def zero(stage: int | None) -> dict[str, Any] | None:
    """DeepSpeed's section for a stage of ZeRO; without one there is plain PyTorch."""
    if stage is None:
        return None
    pytest.importorskip("deepspeed")
    return {"zero_optimization": {"stage": stage}}


def in_groups(episodes: list[Any], count: int, *, equal: bool = False) -> WholeEpisodes:
    """Episodes in ``count`` groups of one game; with ``equal`` all of a group return the same."""
    for number, episode in enumerate(episodes):
        part = episode.agent_episodes["player"]
        part.custom_data["lmgame"].group, part.custom_data["lmgame"].game = f"g{number % count}", "game"
        if equal:
            part.rewards.data[:] = [0.0] * (len(part.rewards.data) - 1) + [0.1 + number % count]
    return WholeEpisodes(episodes=episodes)


def one_prompt_each(groups: list[Any]) -> WholeEpisodes:
    """Groups of episodes; those of a group begin with one prompt of 40 tokens, and all with the same 20 of them."""
    rng, episodes = np.random.default_rng(0), []
    rules = rng.integers(0, 64, 20)
    for number, group in enumerate(groups):
        prompt = np.concatenate([rules, rng.integers(0, 64, 20)]).astype(np.int32)
        for episode in group:
            part = episode.agent_episodes["player"]
            part.custom_data["lmgame"].group, part.custom_data["lmgame"].game = f"g{number}", "game"
            part.extra_model_outputs["turn"].data[0].prompt_ids = prompt
            episodes.append(episode)
    return WholeEpisodes(episodes=episodes)


def marked(episodes: list[Any], seed: int = 0) -> list[Any]:
    """The same episodes, of which some of the later prompts' tokens are the game's text. All begin with one prompt, and
    so do rows of last turns.
    """
    from episode_parts import episode_of, part_of  # Ray's workers, which import this module, do not find it.

    rng, made = np.random.default_rng(seed), []
    first, last = (np.random.default_rng(9 + i).integers(0, 64, 36).astype(np.int32) for i in range(2))
    for episode in episodes:
        trajectory = trajectory_of(episode.agent_episodes["player"])
        for number, turn in enumerate(trajectory.turns):
            turn.prompt_ids = {0: first, 3: last}.get(number, turn.prompt_ids)
            turn.observed = rng.random(len(turn.prompt_ids)) < (0.6 if number else 0.0)
            turn.new_row = number in (0, 3)  # The last of four turns begins a row.
        if trajectory.final_prompt_ids is not None:
            trajectory.final_observed = rng.random(len(trajectory.final_prompt_ids)) < 0.5
        made.append(episode_of(part_of(trajectory)))
    return made


class ThreadGroup(ProcessGroup):
    """Learners that are threads of this process; what each has lies in ``parts``."""

    def __init__(self, parts: list[Any], barrier: threading.Barrier, rank: int) -> None:
        super().__init__(len(parts), rank)
        self.parts, self.barrier = parts, barrier

    def sum(self, values: Any) -> np.ndarray:
        return np.sum([np.asarray(part, np.float64) for part in self.gathered(values)], axis=0)

    def max(self, values: Any) -> np.ndarray:
        return np.max([np.asarray(part, np.float64) for part in self.gathered(values)], axis=0)

    def gathered(self, part: Any) -> list[Any]:
        self.parts[self.rank] = part
        self.barrier.wait()
        found = list(self.parts)
        self.barrier.wait()
        return found


def together(members: int, learner: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What ``learner`` gives for each of so many ranks that run at once."""
    parts, barrier = [None] * members, threading.Barrier(members, timeout=120)

    def run(rank: int) -> Any:
        try:
            return learner(ThreadGroup(parts, barrier, rank))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(members) as pool:
        return list(pool.map(run, range(members)))
