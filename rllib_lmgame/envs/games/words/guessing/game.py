"""What games of questions share: something is meant, each question costs one, the guess that is right wins."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import TextGameOptions
from rllib_lmgame.envs.games.words.guessing.oracle import own_oracle
from rllib_lmgame.envs.games.words.guessing.questions import shown
from rllib_lmgame.envs.support.replies import WholeReplyGame

QUESTION_REWARD = -1.0
SURE_TURNS = 20
"""Questions with which the solvers find everything."""


class GuessingOptions(TextGameOptions):
    """What the ``env_config`` of these games has in common."""

    max_turns: int = option(20, "Questions per episode.", ge=1)
    invalid_action_penalty: float = option(-1.0, "Reward of a reply that is no question.", le=0)
    max_invalid_actions: int | None = option(
        None, "Replies in a row that are no question that end the episode; null never ends it.", ge=1
    )


class Asked(Protocol):
    """A question that was asked, and its answer."""

    @property
    def question(self) -> str:
        """As the player wrote it."""

    @property
    def answer(self) -> str:
        """As the oracle gave it."""


class GuessingGame(WholeReplyGame):
    """One of ``names`` is meant; the level is its number. A game keeps what was asked in ``_exchanges``.

    Its options have ``oracle`` (see :func:`~rllib_lmgame.envs.games.words.guessing.oracle.own_oracle`).
    """

    turns_are_tries = True
    title: str
    """Begins the key of a level."""
    reveal: str
    """How the end of a lost game begins."""

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._own_oracle = own_oracle(self.options.oracle)
        self.slow_calls = self._own_oracle is not None

    def check_ready(self) -> str:
        """Ask an oracle that is a language model whether it is there. Raises: ConfigError: it is not."""
        return "" if self._own_oracle is None else self._own_oracle.check_ready()

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What may be meant."""

    @property
    def solver_wins(self) -> bool:
        """Not with an oracle whose answers nobody vouches for."""
        return self._own_oracle is None and bool(self.options.max_turns >= SURE_TURNS)

    def levels(self, rng: random.Random) -> Iterator[int]:
        while True:
            yield rng.randrange(len(self.names))

    def level_key(self, level: int) -> str:
        return f"{self.title} {self.names[level]}"

    def start(self, level: int) -> None:
        self._meant = level
        self._exchanges: list[Any] = []

    def board(self) -> str:
        asked: list[Asked] = self._exchanges
        lines = [
            f"{number}. {shown(said.question).rstrip(' ?.!')}? {said.answer}"
            for number, said in enumerate(asked, start=1)
        ]
        if not lines:
            lines = ["No questions yet."]
        if not self.success and self._turns_left() <= 0:
            lines.append(f"{self.reveal} {self.names[self._meant]}.")
        return "\n".join(lines)
