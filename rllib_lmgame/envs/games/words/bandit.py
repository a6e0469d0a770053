"""Bandit: two arms named by occupations, one safe and one risky."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import TextGame, TextGameOptions, Variant, read_word
from rllib_lmgame.envs.contract.splits import TEST, TRAIN, VALIDATION

PAIRS = {
    TRAIN: (
        *(("accountant", "gambler"), ("librarian", "stuntman"), ("postman", "pirate"), ("archivist", "smuggler")),
        *(("dentist", "prospector"), ("clerk", "bullfighter"), ("baker", "raider"), ("notary", "speculator")),
        *(("pharmacist", "mercenary"), ("gardener", "acrobat"), ("tailor", "explorer"), ("teacher", "burglar")),
    ),
    VALIDATION: (
        *(("bookkeeper", "adventurer"), ("cashier", "daredevil")),
        *(("nurse", "racer"), ("optician", "astronaut")),
    ),
    TEST: (
        *(("auditor", "outlaw"), ("receptionist", "skydiver"), ("proofreader", "spy"), ("typist", "privateer")),
        *(("bookbinder", "mountaineer"), ("janitor", "swindler"), ("curator", "whaler"), ("plumber", "poacher")),
    ),
}
"""Safe and risky occupations by split; each occurs once."""

RULES = """Two people each offer you a game, and you choose whose to play. One game is safe and pays {safe:g} every \
time. The other is risky and pays {prize:g} with a probability of {probability:g}, else nothing. You know their \
occupations alone: the risky game is that of the one who lives more dangerously.
Reply with one of the two occupations. {turns}"""


class Level(NamedTuple):
    """The two occupations as they are listed, and the risky one of them."""

    arms: tuple[str, str]
    risky: str


class BanditOptions(TextGameOptions):
    """``env_config`` of Bandit."""

    max_turns: int = option(1, "Replies per episode; what earlier ones paid is shown.", ge=1)
    safe_reward: float = option(0.1, "What the safe arm pays.")
    risky_reward: float = option(1.0, "What the risky arm pays when it pays.")
    risky_probability: float = option(0.25, "Probability that the risky arm pays.", ge=0, le=1)
    any_pair: bool = option(False, "Pair any safe with any risky occupation of a split; else each has one partner.")


class Bandit(TextGame):
    """Choose between a safe and a risky arm by their names.

    Observation: two occupations, in either order; with several turns also what earlier choices paid.
    Action: one of the two.
    Reward: the safe arm pays 0.1, the risky one 1 with a probability of 0.25 and else 0; -0.1 for a reply that is
        neither. The rules say so, and that the risky arm has the more dangerous occupation.
    Success: the last choice is the arm with the higher mean, whatever it paid.
    Horizon: one reply. Rewards are those of SCOUT (arXiv 2601.21754), the names are our own.
    Levels: 12 pairs of occupations for training, 4 for validation and 8 for tests, each in both orders. No
        occupation is in two pairs, so that who succeeds in a test knows what the words mean. With ``any_pair`` there
        are 288, 32 and 128 levels.
    Solver: the arm with the higher mean.
    """

    variants = (
        Variant("lmgame/Bandit-v0", (-0.1, 1.0), "Choose between a safe and a risky arm by their names: one reply."),
    )
    Options: ClassVar[type[TextGameOptions]] = BanditOptions
    turns_are_tries = True
    options: BanditOptions

    @property
    def rules(self) -> str:
        chosen = self.options
        return RULES.format(
            safe=chosen.safe_reward,
            prize=chosen.risky_reward,
            probability=chosen.risky_probability,
            turns="There is one turn." if chosen.max_turns == 1 else f"There are {chosen.max_turns} turns.",
        )

    @property
    def success(self) -> bool:
        return bool(self._choices) and self._mean(self._choices[-1][0]) == max(map(self._mean, self._level.arms))

    @property
    def finished(self) -> bool:
        return self._turns_left() <= 0

    def levels(self, rng: random.Random) -> Iterator[Level]:
        pairs = [pair for split in PAIRS.values() for pair in split]
        while True:
            safe, risky = rng.choice(pairs)
            if self.options.any_pair:
                safe = rng.choice(next(each for each in PAIRS.values() if (safe, risky) in each))[0]
            yield Level((safe, risky) if rng.random() < 0.5 else (risky, safe), risky)

    def level_key(self, level: Level) -> str:
        return f"bandit {' '.join(level.arms)}"

    def split_of_level(self, digest: str, level: Level) -> str:
        return next(split for split, pairs in PAIRS.items() if any(level.risky == risky for _, risky in pairs))

    def start(self, level: Level) -> None:
        self._level = level
        self._choices: list[tuple[str, float]] = []

    def board(self) -> str:
        paid = [f"You chose {arm}: {reward:g}." for arm, reward in self._choices]
        return "\n".join([f"Occupations: {', '.join(self._level.arms)}.", *paid])

    def legal_actions(self) -> tuple[str, ...]:
        return self._level.arms

    def read_move(self, text: str) -> str:
        return read_word(text, self._level.arms, "occupation")

    def play_move(self, arm: str) -> float:
        chosen, reward = self.options, self.options.safe_reward
        if arm == self._level.risky:
            reward = chosen.risky_reward if self.random.random() < chosen.risky_probability else 0.0
        self._choices.append((arm, reward))
        return reward

    def expert_action(self) -> str:
        """The arm with the higher mean."""
        return max(self._level.arms, key=self._mean)

    def expert_thought(self) -> str:
        """How each of the two lives."""
        lives = {arm: "reckless" if arm == self._level.risky else "careful" for arm in self._level.arms}
        return " ".join(f"The {arm} lives a {life} life." for arm, life in lives.items())

    def _mean(self, arm: str) -> float:
        """What an arm pays on average."""
        chosen = self.options
        return chosen.risky_probability * chosen.risky_reward if arm == self._level.risky else chosen.safe_reward
