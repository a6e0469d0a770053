"""Playing ahead with an engine whose weights change: threads, runner and engine, without Ray."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllib_lmgame.algorithms.async_rollouts import AsyncRollouts
from rllib_lmgame.algorithms.cluster.workers import SharedRunners
from rllib_lmgame.algorithms.ppo import LMGamePPO
from rllib_lmgame.algorithms.scheduled import schedules_of
from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.rollouts.records import trajectory_of
from rllib_lmgame.rollouts.sources import AgentMapper

UPDATES, EPISODES = 5, 4


@pytest.mark.parametrize("max_staleness", [1, 3])
def test_replies_go_on_under_new_weights_and_every_iteration_is_whole(
    make_runner: Callable[..., Any], model_dir: Path, max_staleness: int
) -> None:
    """Each update pushes equal weights as a new version, so one model says what all log-probabilities must be."""
    engine = TransformersEngine(str(model_dir), InferenceOptions(engine="transformers"), context_length=512)
    runner = make_runner(
        env_config={"max_turns": 3},
        rollouts={"episodes_per_iteration": EPISODES, "episode_log": "off"},
        model={"max_tokens_per_turn": 60, "context_length": 512, "history": "keep", "dtype": "float32"},
        sections={"async_rollouts": {"max_staleness": max_staleness}},
    )
    assert not any(map(inspect.iscoroutinefunction, vars(type(runner)).values())), "Ray would run it in a loop"

    async def generate(request: Any, key: Any = None) -> Any:
        return await engine.generate(request)

    runner._clients["player"] = SimpleNamespace(generate=generate, forget=lambda key: None, close=lambda: None)
    group: Any = SimpleNamespace(
        num_remote_env_runners=lambda: 1,
        healthy_worker_ids=lambda: [1],
        foreach_env_runner=lambda calls, **how: [call(runner) for call in calls],
    )
    config = runner.config
    algorithm = LMGamePPO.__new__(LMGamePPO)
    algorithm.__dict__.update(
        config=config,
        agent_mapper=AgentMapper(config),
        env_runner_group=group,
        engine_groups={"player": None},
        _shared_runners=SharedRunners(group, None, lambda _: None),
        _schedules=schedules_of(config),
        _env_steps=lambda: 0,
        _league=None,
        _needs_groups=False,
        _item_order=None,
        _rl_iteration=0,
        _policy_version=0,
    )
    asyncio.run(engine.start())
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    state = {name: weights.detach().numpy().copy() for name, weights in model.named_parameters()}
    ahead = AsyncRollouts(algorithm, max_staleness)
    turns: list[tuple[int, Any]] = []
    try:
        for iteration in range(UPDATES):
            selected = ahead.take(iteration, algorithm.at_present())
            ahead.begin()
            assert [each.id_ for each in selected.episodes] == [f"train-{iteration}-{n}" for n in range(EPISODES)]
            assert not selected.result.failures
            for episode in selected.episodes:
                turns += [(iteration, trajectory_of(part)) for part in episode.agent_episodes.values()]
            time.sleep(0.05)  # An update, in whose time replies go on.
            algorithm._policy_version += 1
            asyncio.run(engine.update_weights(state, algorithm._policy_version))
            algorithm._rl_iteration += 1
        ahead.drain()
    finally:
        ahead._jobs.put(None)
        runner.stop()
        asyncio.run(engine.shutdown())
    changed = 0
    for iteration, trajectory in turns:
        ids: list[int] = []
        versions: list[int] = []
        for turn in trajectory.turns:
            ids = ([] if turn.new_row else ids) + turn.prompt_ids.tolist()
            whole = torch.tensor([ids + turn.response_ids.tolist()])
            with torch.no_grad():
                logits = model(whole).logits[0, len(ids) - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, whole[0, len(ids) :, None])[:, 0].numpy()
            np.testing.assert_allclose(turn.rollout_logprobs, expected, atol=1e-4)
            ids += turn.response_ids.tolist()
            assert all(0 < first < len(turn.response_ids) for first, _ in turn.later_versions)
            versions += [turn.policy_version, *(version for _, version in turn.later_versions)]
            changed += bool(turn.later_versions)
        assert versions == sorted(versions)
        assert iteration - max_staleness <= versions[0] and versions[-1] <= iteration
    assert changed, "some reply was under way when weights came"
