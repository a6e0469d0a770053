"""Games of authors who know Gymnasium and PettingZoo and nothing of this package; and the same with a call that never
comes back.
"""

from __future__ import annotations

import os
import re
import string
import time
from typing import Any

import gymnasium
from gymnasium.spaces import Text
from pettingzoo import AECEnv, ParallelEnv

FIVE = "abcde"
WORDS = string.ascii_letters + string.digits + " "


class Letters(gymnasium.Env):
    """Guess a letter; six replies."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = Text(40, charset=WORDS)
        self.action_space = Text(min_length=1, max_length=1, charset=FIVE)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.letter = FIVE[int(self.np_random.integers(5))]
        self.left = 6
        return "guess a letter", {}

    def step(self, action):
        self.left -= 1
        right = action == self.letter
        return "right" if right else "wrong", float(right), right, self.left == 0, {}


class Count(AECEnv):
    """Two players say a number in turn; whoever says 3 after another's number wins."""

    metadata = {"name": "count_v0", "render_modes": []}

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents: list[Any] = ["first", "second"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, Text(20, charset=WORDS))
        self.action_spaces = {agent: Text(min_length=1, max_length=1, charset="123") for agent in self.possible_agents}
        self.render_mode = None

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self.possible_agents[0]
        self.said = ["start"]

    def observe(self, agent):
        return self.said[-1][:20]

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        other = next(player for player in self.possible_agents if player != agent)
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.possible_agents, 0.0)
        self.said.append(action)
        if action == "3" and len(self.said) > 2:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        elif len(self.said) > 8:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
        self._accumulate_rewards()


class Together(ParallelEnv):
    """Both say a letter; they are paid if it is the same."""

    metadata = {"name": "together_v0"}
    possible_agents: list[Any] = ["left", "right"]

    def __init__(self) -> None:
        self.render_mode = None
        self.agents: list[str] = []
        self.observation_spaces = {agent: Text(20, charset=WORDS) for agent in self.possible_agents}
        self.action_spaces = {agent: Text(min_length=1, max_length=1, charset="ab") for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.agents, self.round = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, "begin"), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.round += 1
        agents, over = self.agents, self.round == 3
        reward = float(len(set(actions.values())) == 1)
        if over:
            self.agents = []
        no = dict.fromkeys(agents, False)
        return (
            dict.fromkeys(agents, "next"),
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, over),
            no,
            {agent: {} for agent in agents},
        )


class Hanging(Letters):
    """Never comes back from the call ``where``; with ``how`` it holds the interpreter, ends the process or says nothing
    on leaving.
    """

    def __init__(self, where: str = "", how: str = "sleep", render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.where, self.how = where, how
        self.misbehave("the constructor")

    def misbehave(self, where: str) -> None:
        if where != self.where:
            return
        if self.how == "sleep":
            time.sleep(3600)
        elif self.how == "regular expression":
            re.match(r"(a+)+$", "a" * 64 + "b")
        elif self.how == "exit":
            os._exit(0)
        elif self.how == "system exit":
            raise SystemExit

    def reset(self, *, seed=None, options=None):
        self.misbehave("reset()")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.misbehave("step()")
        return super().step(action)
