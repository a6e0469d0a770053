"""Plug-ins of every kind but an engine (``own_engine.py``), as they come from elsewhere; Ray's workers find them."""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ray.tune import Callback

from rllib_lmgame.envs.contract import InvalidAction, TextAECGame
from rllib_lmgame.envs.contract.base import TextGame
from rllib_lmgame.learners.advantages import AdvantageInputs, Estimator
from rllib_lmgame.learners.losses.policy import Clip, PolicyTerms
from rllib_lmgame.policies.chat.reply_formats import ParsedReply, ReplyFormat


class Sticks(TextAECGame):
    """Games: take one stick or two, the last one wins. There is always a choice."""

    metadata: ClassVar[dict[str, Any]] = {"name": "sticks_v0", "is_parallelizable": False, "render_modes": ["ansi"]}
    seats: ClassVar[Mapping[str, str]] = {"ann": "first", "bob": "second"}
    rules = "1 or 2"
    most: ClassVar[int] = 5

    def start(self) -> None:
        self.left, self.moves = self.random.randint(3, self.most), 0

    def player_to_move(self) -> str:
        return list(self.seats)[self.moves % 2]

    def view(self, agent: str) -> str:
        return str(self.left)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return () if self.finished or agent != self.player_to_move() else ("1", "2")

    def read_move(self, text: str) -> int:
        if text not in ("1", "2"):
            raise InvalidAction("type 1 or 2.")
        return int(text)

    def play_move(self, agent: str, move: int) -> None:
        self.left, self.moves = max(0, self.left - move), self.moves + 1

    @property
    def finished(self) -> bool:
        return self.left == 0

    def results(self) -> dict[str, float]:
        loser = self.player_to_move()
        return {agent: -1.0 if agent == loser else 1.0 for agent in self.seats}

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return {other: -1.0 if other == agent else 1.0 for other in self.seats}


class Doors(TextGame):
    """Two doors one after the other: right, then left, earns 1, and all else nothing."""

    instructions = "Type left or right."
    doors: ClassVar[tuple[str, ...]] = ("right", "left")

    def levels(self, rng: random.Random) -> Iterator[int]:
        while True:
            yield rng.randint(1, 9)

    def level_key(self, level: int) -> str:
        return str(level)

    def start(self, level: int) -> None:
        self.taken: list[str] = []

    def board(self) -> str:
        return f"door {len(self.taken) + 1} {' '.join(self.taken)}"

    def legal_actions(self) -> tuple[str, ...]:
        return ("left", "right")

    def read_move(self, text: str) -> Hashable:
        if text not in self.legal_actions():
            raise InvalidAction("type left or right.")
        return text

    def play_move(self, move: Hashable) -> float:
        self.taken.append(str(move))
        return float(self.success)

    @property
    def success(self) -> bool:
        return tuple(self.taken) == self.doors

    @property
    def finished(self) -> bool:
        return len(self.taken) == 2


class ManySticks(Sticks):
    """The other game of the family."""

    most: ClassVar[int] = 9


def matchmaker(
    agent_id: str, episode: Any = None, *, agent_ids: Sequence[str] = (), seed: int = 0, **kwargs: Any
) -> str:
    """Seat mapping: which seat the learner takes and whom it meets are drawn per level."""
    seat, opponent = seed % 2, ("greedy", "chance")[seed // 2 % 2]
    return "player" if list(agent_ids).index(agent_id) == seat else opponent


class TakesTwo:
    """Scripted player."""

    def act(self, session: Any, agent_id: str, observation: Any, rng: random.Random) -> str:
        return "2"


class Shouted(ReplyFormat):
    """Reply format: the action between exclamation marks."""

    marks = ("!!",)

    def form(self) -> str:
        return "!!your reply!!"

    def read(self, text: str) -> ParsedReply:
        parts = text.split("!!")
        return ParsedReply(parts[1]) if len(parts) == 3 else ParsedReply(None, None, "the reply has no !!...!!")

    def say(self, action: str, thought: str | None) -> str:
        return f"!!{action}!!"


class MeanOfGroup(Estimator):
    """Advantage estimator: how much better than the others of its group."""

    needs_groups = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        means = np.bincount(inputs.groups, weights=inputs.returns) / np.maximum(1, np.bincount(inputs.groups))
        return inputs.per_token(inputs.returns - means[inputs.groups])


class Gentle(Clip):
    """Policy loss: PPO's with a price on how far the policy has moved, which it reports as ``drift``."""

    def __call__(self, terms: PolicyTerms) -> Any:
        loss, sums = super().__call__(terms)
        drift = (terms.logprobs - terms.old_logprobs).square()
        return loss + 0.1 * drift, sums | {"drift": drift.detach().sum()}


class Diary(Callback):
    """Tune callback: a line per result."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        with self.path.open("a") as file:
            file.write(f"{result['training_iteration']}\n")


def summary(trials: Sequence[Any], path: str) -> None:
    """Report: where the trials' checkpoints are."""
    Path(path).write_text(json.dumps([trial.checkpoint for trial in trials]))
