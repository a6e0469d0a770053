"""Games that break the contract, one rule each, for the tests of the checker and the sessions."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, quoted, text_space
from rllib_lmgame.envs.contract.turns import TextAECGame
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe


class Counting(TextGame):
    """A sound game: count down from the level's number by typing ``less``."""

    rules = "Type less until the number is 0."

    def levels(self, rng):
        while True:
            yield rng.randint(1, 8)

    def level_key(self, level):
        return str(level)

    def split_of_level(self, digest, level):
        return ("train", "validation", "test")[level % 3]

    def start(self, level):
        self.number = level

    def board(self):
        return f"{self.number} left"

    def legal_actions(self):
        return ("less",)

    def read_move(self, text):
        if text != "less":
            raise InvalidAction("type less.")
        return text

    def play_move(self, move):
        self.number -= 1
        return 1.0

    @property
    def success(self):
        return self.number == 0

    def solve(self):
        return ["less"] * self.number


class WrongMeasures(Counting):
    def measures(self):
        return {"right letters": 2.0}


class FractionMeasures(Counting):
    def measures(self):
        return {"letters": Fraction(1, 2)}


class NumpyMeasures(Counting):
    def measures(self):
        return {"letters": np.bool_(True)}


class NoRules(Counting):
    rules = ""


class Unseeded(Counting):
    def start(self, level):
        self.number = random.randint(1, 8)


class SaltedHash(Counting):
    def board(self):
        return f"{self.number} left of {hash('some')}"


class NotANumber(Counting):
    def play_move(self, move):
        return super().play_move(move) * float("nan")


class RaisesOnGarbage(Counting):
    def read_move(self, text):
        return {"less": "less"}[text]


class ListsIllegal(Counting):
    def legal_actions(self):
        return ("less", "more")


class Endless(Counting):
    @property
    def success(self):
        return False

    def _turns_left(self):
        return 5

    def solve(self):
        return None


class NoSuccess(Counting):
    def step(self, action):
        *rest, info = super().step(action)
        info.pop("success", None)
        return (*rest, info)


class BothFlags(Counting):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, terminated, info


class SharedLevels(Counting):
    def split_of_level(self, digest, level):
        return self.options.split


class OneLevel(Counting):
    def levels(self, rng):
        while True:
            yield from (1, 2, 3)


class WrongSolver(Counting):
    def solve(self):
        return ["more"]


class LazySolver(Counting):
    def levels(self, rng):
        while True:
            yield rng.randint(20, 80)


class UnmarkedGarbage(Counting):
    def step(self, action):
        *rest, info = super().step(action)
        return (*rest, {**info, "invalid_action": False})


class NotZeroSum(TicTacToe):
    def results(self):
        return dict.fromkeys(self.seats, 1.0)


class NumberSpace(gymnasium.Env):
    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(3)


ODD_INFOS: dict[str, dict[str, Any]] = {
    "legal": {"legal_actions": "abc"},
    "legal is nothing": {"legal_actions": None},
    "turns left in words": {"turns_left": "many"},
    "turns left is an array": {"turns_left": np.array([3])},
    "turns left is endless": {"turns_left": 10**5000},
}


class Plain(gymnasium.Env):
    """Not built on our base classes; ``fault`` chooses what is wrong."""

    observation_space = text_space()
    action_space = text_space()

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fault == "reset":
            raise RuntimeError("no more levels")
        return "say something", {}

    def step(self, action):
        observation: Any = {"observation": 5, "endless": "x" * 10_000_000}.get(self.fault, "thanks")
        faults: dict[str, Any] = {
            "nan": float("nan"),
            "infinite": np.float64("inf"),
            "huge": 10**400,
            "large": 1e39,
            "word": "much",
            "none": None,
        }
        reward: Any = faults.get(self.fault, np.float32(1.0))
        info: Any = [] if self.fault == "info" else {"success": True}
        if self.fault == "raise":
            raise ZeroDivisionError("division by zero")
        if self.fault == "short":
            return observation, reward
        flag: Any = "yes" if self.fault == "flag" else True
        if self.fault in ODD_INFOS:
            info = ODD_INFOS[self.fault]
        return observation, reward, flag, False, info


class Talking(TextAECGame):
    """Two players say something three times; what the one says is shown to the other as it is."""

    rules = "Say something to each other."
    zero_sum = False

    def start(self):
        self.said = []

    def player_to_move(self):
        return self.possible_agents[len(self.said) % 2]

    def view(self, agent):
        return "\n".join(["You talk.", *(f"The other says: {text}" for text in self.said[-1:])])

    def legal_actions(self, agent):
        return ()

    def read_move(self, text):
        return text

    def play_move(self, agent, move):
        self.said.append(move)

    @property
    def finished(self):
        return len(self.said) >= 6

    def results(self):
        return dict.fromkeys(self.possible_agents, 0.0)

    def forfeit_results(self, agent):
        return dict.fromkeys(self.possible_agents, -1.0)


class Quoting(Talking):
    """The same, with quotations."""

    def view(self, agent):
        return "\n".join(["You talk.", *(quoted("The other", text) for text in self.said[-1:])])


class Matching(ParallelEnv):
    """A sound parallel game: both players name a side at once; the first wins if they agree."""

    metadata = {"name": "matching_v0", "is_parallelizable": True}
    instructions = "Type heads or tails."
    roles = {"even": "even", "odd": "odd"}
    zero_sum = True

    def __init__(self, rounds: int = 2, render_mode: str | None = None) -> None:
        self.rounds = rounds
        self.render_mode = render_mode
        self.possible_agents = ["even", "odd"]
        self.agents: list[str] = []
        self.spaces = {agent: text_space() for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.spaces[agent]

    def action_space(self, agent):
        return self.spaces[agent]

    def _infos(self, **more):
        return {
            agent: {"legal_actions": ("heads", "tails"), "invalid_action": False, **more}
            for agent in self.possible_agents
        }

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.round = 0
        return dict.fromkeys(self.agents, "round 1"), self._infos()

    def step(self, actions):
        self.round += 1
        over = self.round >= self.rounds
        words = {agent: action.strip().lower() for agent, action in actions.items()}
        valid = {agent: word in ("heads", "tails") for agent, word in words.items()}
        gain = 0.0
        if all(valid.values()):
            gain = 1.0 if words["even"] == words["odd"] else -1.0
        infos = self._infos(**({"success": gain > 0} if over else {}))
        for agent, fine in valid.items():
            infos[agent]["invalid_action"] = not fine
        texts = dict.fromkeys(self.agents, f"round {self.round + 1}")
        flags = dict.fromkeys(self.agents, over)
        rewards = {"even": gain, "odd": -gain}
        no = dict.fromkeys(self.agents, False)
        if over:
            self.agents = []
        return texts, rewards, flags, no, infos


class PaidLater(Matching):
    """Pays a player whose game is over."""

    def step(self, actions):
        texts, _, terminations, truncations, infos = super().step({"even": "heads", **actions})
        terminations["even"] = True
        self.agents = ["odd"]
        return texts, {"even": 1.0, "odd": 0.0}, terminations, truncations, infos


class MarksNoEnd(gymnasium.Env):
    """Of another author: the info of the third and last reply does not mark it."""

    observation_space = text_space()
    action_space = text_space()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.replies = 0
        return "say yes", {"legal_actions": ("yes",)}

    def step(self, action):
        self.replies += 1
        over = self.replies == 3
        info = {} if over else {"legal_actions": ("yes",), "invalid_action": action != "yes"}
        return "say yes", 0.0, False, over, info


class MarksNothing(MarksNoEnd):
    """Neither marks a reply nor ends the game."""

    def step(self, action):
        return "say yes", 0.0, False, False, {"legal_actions": ("yes",)}


class ReadsNumbers(MarksNoEnd):
    """Raises in code that the standard library calls."""

    def step(self, action):
        return json.loads("1", parse_int=lambda _: int(action))
