"""A game that costs nothing and whose token counts are known: exactly ``turns`` turns, each showing a number of digits.

Every digit is one token of the tiny model's tokenizer. What is shown depends on the seed and the turn alone, so every
reply is as good as any other and prompts have the same length in every run.
"""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium
from gymnasium import spaces

DIGITS = "0123456789"


class Recital(gymnasium.Env[str, str]):
    """Shows digits and takes any reply.

    Args:
        turns: Turns of an episode.
        rules: Digits of the rules, the same in every episode.
        first: Digits of the first observation.
        later: Digits of every later observation.
        wait_ms: How long a step sleeps.
    """

    def __init__(
        self, turns: int = 5, rules: int = 192, first: int = 100, later: int = 84, wait_ms: float = 0.0
    ) -> None:
        self.turns, self.first, self.later, self.wait_s = turns, first, later, wait_ms / 1000
        self.instructions = digits(random.Random(0), rules)
        self.observation_space = self.action_space = spaces.Text(max_length=100_000, charset=DIGITS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the episode of ``seed``."""
        super().reset(seed=seed)
        self._digits = random.Random(seed)
        self._turn = 0
        return digits(self._digits, self.first), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take any reply; the reward is chance, so that there are advantages to compute."""
        if self.wait_s:
            time.sleep(self.wait_s)
        self._turn += 1
        done = self._turn == self.turns
        info = {"success": True} if done else {}
        return digits(self._digits, self.later), self._digits.random(), done, False, info


def digits(rng: random.Random, count: int) -> str:
    """``count`` random digits."""
    return "".join(rng.choices(DIGITS, k=count))
