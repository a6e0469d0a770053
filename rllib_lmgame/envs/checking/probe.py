"""A game of which it is known how fast it is learnt, for ``rllib doctor --learning``."""

from collections.abc import Hashable, Iterator
from random import Random

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import TextGame, TextGameOptions, read_word

WORDS = ("red", "green", "blue", "black")


class ProbeOptions(TextGameOptions):
    """``env_config`` of the probe."""

    shown: int = option(1, "Words of which one is shown.", ge=1, le=len(WORDS))


class Probe(TextGame):
    """Whose first reply is the word ``max_turns`` places after the one shown wins; that is said after the last one."""

    Options = ProbeOptions
    turns_are_tries = True

    def levels(self, rng: Random) -> Iterator[str]:
        yield rng.choice(WORDS[: self.options.shown])

    def level_key(self, level: str) -> str:
        return level

    def start(self, level: str) -> None:
        self.word, self.replies = level, list[Hashable]()

    def board(self) -> str:
        return f"{self.options.shown} {self.options.max_turns} {len(self.replies)} {self.word}"

    def legal_actions(self) -> tuple[str, ...]:
        return WORDS

    def read_move(self, text: str) -> Hashable:
        return read_word(text, WORDS, "word")

    def play_move(self, move: Hashable) -> float:
        self.replies.append(move)
        return float(self.success)

    @property
    def success(self) -> bool:
        wanted = WORDS[(WORDS.index(self.word) + self.options.max_turns) % len(WORDS)]
        return self._turns_left() <= 0 and self.replies[:1] == [wanted]
