"""Guess the number: an example of a game for one player."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import InvalidAction, TextGame, TextGameOptions


class GuessNumberOptions(TextGameOptions):
    """``env_config`` of GuessNumber."""

    max_turns: int = option(8, "Replies per episode.", ge=1)
    highest: int = option(100, "The number lies between 1 and this one.", ge=10, le=1000)


class GuessNumber(TextGame):
    """Find a hidden number; each guess is answered with "too low" or "too high".

    Observation: all guesses so far with their answers. Action: a number.
    Reward: 1 when it is found, 0 otherwise; -0.1 for a reply that is no number in range.
    """

    Options: ClassVar[type[TextGameOptions]] = GuessNumberOptions
    options: GuessNumberOptions

    @property
    def rules(self) -> str:
        guesses = f"You have {self.options.max_turns} guesses. Reply with one number."
        return f"Guess a number between 1 and {self.options.highest}. {guesses}"

    def levels(self, rng: random.Random) -> Iterator[int]:
        while True:
            yield rng.randint(1, self.options.highest)

    def level_key(self, level: int) -> str:
        return f"guess_number {self.options.highest} {level}"

    def start(self, level: int) -> None:
        self._number = level
        self._guesses: list[int] = []

    def board(self) -> str:
        answers = {-1: "too low", 0: "right", 1: "too high"}
        lines = [f"{guess}: {answers[(guess > self._number) - (guess < self._number)]}" for guess in self._guesses]
        return "\n".join(lines) or "No guesses yet."

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(str(n) for n in range(1, self.options.highest + 1))

    def read_move(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= self.options.highest:
            raise InvalidAction(f"reply with one number between 1 and {self.options.highest}.")
        return int(text)

    def play_move(self, move: int) -> float:
        self._guesses.append(move)
        return 1.0 if self.success else 0.0

    @property
    def success(self) -> bool:
        return self._number in self._guesses

    @property
    def solver_wins(self) -> bool:
        return self.options.highest < 2**self.options.max_turns

    def expert_action(self) -> str:
        """Halve what is left, from what a player can see."""
        low = max((guess for guess in self._guesses if guess < self._number), default=0)
        high = min((guess for guess in self._guesses if guess > self._number), default=self.options.highest + 1)
        return str((low + high) // 2)
