"""The game of ``GAME`` for verifiers.

pip install -e .
vf-eval NAME -m MODEL --select.limit 16 --no-push
"""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import verifiers.v1 as vf

from rllib_lmgame.policies.one_seat import OneSeat

__all__ = ["GameEnv", "GameTaskset"]

GAME = "lmgame/FrozenLake-v0"
OPTIONS: dict[str, Any] = {}
OTHERS: dict[str, str] = {}


class GameTasksetConfig(vf.TasksetConfig):
    options: dict[str, Any] = {}
    """Options of the game in place of those above: `{split: test}`."""


class GameData(vf.TaskData):
    seed: int
    options: dict[str, Any]


class GameTask(vf.Task[GameData, vf.State, vf.TaskConfig]):
    """A level."""


class GameTaskset(vf.Taskset[GameTask, GameTasksetConfig]):
    """The levels, by their seeds: the rules are the system prompt."""

    INFINITE = True

    def load(self) -> Iterator[GameTask]:
        options = {**OPTIONS, **self.config.options}
        with closing(OneSeat(GAME, options, OTHERS)) as game:
            rules = game.rules
        for seed in itertools.count():
            data = GameData(name=f"{GAME} {seed}", system_prompt=rules, seed=seed, options=options)
            yield GameTask(data, self.config.task)


class GameEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())
    """It only talks, so it needs no container."""


class GameEnv(vf.Env[GameEnvConfig]):
    """The game is the user: it shows, the player replies. The reward is the sum of the game's."""

    async def run(self, task: GameTask, agents: vf.Agents) -> None:
        with closing(OneSeat(GAME, task.data.options, OTHERS)) as game:
            seen = await asyncio.to_thread(game.reset, task.data.seed)
            async with agents.player.interaction(task) as talk:
                while not game.over:
                    segment = await talk.turn(seen)
                    if segment.terminated:
                        break
                    seen = await asyncio.to_thread(game.reply, segment.last_reply)
                talk.trace.record_reward("game", game.total, 1.0)
                talk.trace.record_metric("success", float(bool(game.info.get("success"))))
