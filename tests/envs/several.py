"""Games for several players that use what the base class offers beside turns: levels with splits, a limit of replies,
elimination by forfeit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rllib_lmgame.envs.contract import TextAECGame, TextParallelGame, read_word

SEATS = ("a", "b", "c")


class Heap(TextAECGame):
    """Three players in turn take one or two of a heap; the one who takes the last loses 1 to those who are still in.
    The size is the level.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "heap_v0", "is_parallelizable": False, "render_modes": ["ansi"]}
    seats: ClassVar[Mapping[str, str]] = dict.fromkeys(SEATS, "player")
    has_levels = True
    forfeit_eliminates = True
    rules = "Take 1 or 2; who takes the last one loses."

    def levels(self, rng: random.Random) -> Iterator[int]:
        while True:
            yield rng.randrange(7, 200)

    def level_key(self, level: int) -> str:
        return f"heap {level}"

    def start(self) -> None:
        self.heap: int = self.level
        self.order = list(SEATS)
        self.loser = ""

    def player_to_move(self) -> str:
        return self.order[0]

    def view(self, agent: str) -> str:
        return f"The heap has {self.heap}."

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return () if self.finished or agent != self.order[0] else ("1", "2")[: self.heap]

    def read_move(self, text: str) -> int:
        return int(read_word(text, ("1", "2")[: self.heap], "number"))

    def play_move(self, agent: str, move: int) -> None:
        self.heap -= move
        self.loser = "" if self.heap else agent
        self.order.append(self.order.pop(0))

    def leave(self, agent: str) -> None:
        self.order.remove(agent)

    @property
    def finished(self) -> bool:
        return self.heap == 0 or len(self.order) == 1

    def results(self) -> dict[str, float]:
        if not self.loser:
            return dict.fromkeys(self.order, 0.0)
        winners = [agent for agent in self.order if agent != self.loser]
        return dict.fromkeys(winners, 1 / len(winners)) | {self.loser: -1.0}

    def won(self, agent: str, results: Mapping[str, float]) -> bool:
        return agent in self.order and agent != self.loser and self.finished

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return dict.fromkeys(SEATS, 0.0)

    def measures(self, agent: str) -> dict[str, float]:
        return {"left": self.heap, "players": len(self.order)}


class HeapForAll(Heap):
    """The same, but a forfeit ends everybody's game."""

    forfeit_eliminates = False


class PublicGoods(TextParallelGame):
    """Three players give 0 to 5 of the level's endowment into a pot that doubles and is shared by who is in; two
    rounds. A forfeit ends one seat.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "public_goods_v0", "render_modes": ["ansi"]}
    seats: ClassVar[Mapping[str, str]] = dict.fromkeys(SEATS, "citizen")
    has_levels = True
    forfeit_eliminates = True
    rules = "Reply with the number you give to the pot."

    def levels(self, rng: random.Random) -> Iterator[int]:
        while True:
            yield rng.randrange(5, 200)

    def level_key(self, level: int) -> str:
        return f"endowment {level}"

    def start(self) -> None:
        self.rounds = 0
        self.purse = dict.fromkeys(SEATS, float(self.level))
        self.given = dict.fromkeys(SEATS, 0.0)

    def view(self, agent: str) -> str:
        return f"You have {self.purse[agent]:g}."

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return tuple("012345")

    def read_move(self, agent: str, text: str) -> int:
        return int(read_word(text, tuple("012345"), "number"))

    def default_move(self, agent: str) -> int:
        return 0

    def play_round(self, moves: Mapping[str, int]) -> dict[str, float]:
        for agent, given in moves.items():
            self.given[agent] += given
        share = 2 * sum(moves.values()) / len(moves)
        rewards = {agent: share - given for agent, given in moves.items()}
        for agent, reward in rewards.items():
            self.purse[agent] += reward
            self.tell(agent, f"The pot paid {share:g} to each.")
        self.rounds += 1
        return rewards

    @property
    def finished(self) -> bool:
        return self.rounds >= 2

    def won(self, agent: str) -> bool:
        return self.purse[agent] > self.level

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return dict.fromkeys(SEATS, 0.0)

    def measures(self, agent: str) -> dict[str, float]:
        return {"given": self.given[agent]}
