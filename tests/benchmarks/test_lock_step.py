"""Both ways of the lock-step benchmark play the same games with replies of the same lengths."""

from __future__ import annotations

import asyncio
from typing import Any

import lock_step
import numpy as np
import pytest

from rllib_lmgame.inference.protocol import Generation, GenerationRequest, StopReason
from rllib_lmgame.policies.chat.corpus import game_corpus
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.options import GameConfig
from rllib_lmgame.rollouts.plans import plan_episodes


class Replies:
    """An engine that gives as many tokens as it is asked for, and notes what is asked beside each other."""

    def __init__(self) -> None:
        self.asked: dict[str, tuple[int, ...]] = {}
        self.at_once: list[int] = []
        self.waiting = 0

    async def generate(self, request: GenerationRequest, key: str | None = None) -> Generation:
        self.asked[request.request_id] = (request.sampling.max_tokens, len(request.prompt_ids))
        self.waiting += 1
        await asyncio.sleep(0)
        self.at_once.append(self.waiting)
        self.waiting -= 1
        ids = np.full(request.sampling.max_tokens, 65, np.int32)
        return Generation(request.request_id, ids, np.zeros(len(ids), np.float32), StopReason.MAX_TOKENS, 0)

    def forget(self, key: str) -> None:
        """Nothing is kept."""


@pytest.fixture
def runner(tmp_path: Any) -> TextGameEnvRunner:
    from rllib_lmgame.envs import make_session

    session = make_session("lock_step:Slow", {})
    directory = build_tiny_model(
        tmp_path, game_corpus(session, episodes=2), {"hidden_size": 32, "num_layers": 1, "num_heads": 2}
    )
    config = lock_step.make_config(1)
    config.model_files = {"player": ModelFiles(str(directory))}
    config.engine_names = {"player": ["engine"]}
    return TextGameEnvRunner(config=config)


def test_both_play_the_same(runner: TextGameEnvRunner) -> None:
    game = GameConfig(env="lock_step:Slow", env_config={"turns": 3})
    plans, _ = runner.agent_mapper.assigned(plan_episodes(6, run_seed=0, purpose="t", iteration=0), [game])
    one, two = (lock_step.Uneven(Replies(), lock_step.REPLY) for _ in range(2))
    returns = lock_step.ours(runner, one, plans, game)
    in_rounds = asyncio.run(lock_step.lock_step(two, runner.chat("player"), plans, game))
    assert returns == pytest.approx(in_rounds) and len(set(returns)) == 6
    assert one.client.asked == two.client.asked and len(one.client.asked) == 6 * 3
    assert one.tokens == two.tokens == sum(length for length, _ in one.client.asked.values())
    assert {length for length, _ in one.client.asked.values()} <= set(range(1, 17)) and max(two.client.at_once) == 6
