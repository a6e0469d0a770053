"""Wordle: find a hidden word from the colours of the letters guessed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.contract.splits import (
    SPLITS,
    TEST,
    TEST_SHARE,
    TRAIN,
    VALIDATION,
    VALIDATION_SHARE,
    level_digest,
    split_of,
)
from rllib_lmgame.envs.support.datasets import package_lines

GREY, YELLOW, GREEN = 0, 1, 2
COLOURS = ("grey", "yellow", "green")
MISS_REWARD = -1.0
MAX_SHOWN = 20
"""Characters of a bad word that are quoted back."""

RULES = """You look for a hidden English word of {length} letters. \
Reply with one word of {length} letters and nothing else{listed}.
Each guess is answered letter by letter: green is the right letter in the right place, \
yellow is a letter of the word in another place,
grey is a letter the word does not have (or not that often: \
each letter of the word answers for one letter of the guess).
There are {turns} guesses; a reply that is no such word takes one too. A wrong guess costs 1, the right one nothing."""


class WordleOptions(TextGameOptions):
    """``env_config`` of Wordle."""

    max_turns: int = option(6, "Guesses per episode; a bad word takes one too.", ge=1)
    invalid_action_penalty: float = option(-1.0, "Reward of a reply that is no word of the right length.", le=0)
    max_invalid_actions: int | None = option(
        None, "Bad words in a row that end the episode as a forfeit; null never ends it.", ge=1
    )
    word_length: int = option(5, "Letters of the word.", ge=3, le=5)
    num_words: int | None = option(
        None, "Words that may be hidden, a fixed choice of the list; null takes all.", ge=len(SPLITS)
    )
    listed_only: bool = option(
        False, "Take only guesses that are on the list of words; otherwise any letters may be guessed."
    )


class Wordle(TextGame):
    """Find a hidden word within six guesses.

    Observation: each guess with the colour of every letter.
    Action: a word. Case does not matter.
    Reward: -1 for a wrong guess, -1 for a bad word, 0 for the right one (LMRL-Gym), so that a return is minus the
        number of misses. A letter that is guessed more often than the word has it is coloured only as often as the word
        has it, greens first.
    Horizon: 6 guesses, the last of which ends the game (``terminated``); bad words count, and any number of them is
        allowed: a forfeit would cost less than playing on.
    Levels: the words of a list of this package: 870 with five letters, 582 with four, 204 with three. A word belongs to
        the same split whatever ``num_words`` is.
    Solver: the guess that leaves the most evenly divided colourings of the words still possible (largest entropy), from
        what the player can see. It finds every word of the three lists within six guesses.
    """

    variants = (
        Variant("lmgame/Wordle-v0", (-6.0, 0.0), "Find a word of five letters by the colours of guesses."),
        Variant("lmgame/WordleFour-v0", (-6.0, 0.0), "Wordle with four letters.", {"word_length": 4}),
        Variant("lmgame/WordleThree-v0", (-6.0, 0.0), "Wordle with three letters.", {"word_length": 3}),
    )
    Options: ClassVar[type[TextGameOptions]] = WordleOptions
    turns_are_tries = True
    options: WordleOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        listed = len(word_list(self.options.word_length))
        if self.options.num_words is not None and self.options.num_words > listed:
            raise ConfigError(
                "env_config.num_words",
                f"the list has {listed} words of {self.options.word_length} letters; ask for that many at most",
            )
        self._words = vocabulary(self.options.word_length, self.options.num_words)

    @property
    def rules(self) -> str:
        chosen = self.options
        listed = f"; only words of a list of {len(self._words)} common words are taken" if chosen.listed_only else ""
        return RULES.format(length=chosen.word_length, listed=listed, turns=chosen.max_turns)

    @property
    def success(self) -> bool:
        return bool(self._guesses) and self._guesses[-1] == self._word

    @property
    def solver_wins(self) -> bool:
        """Six guesses are enough for every list; fewer may not be."""
        return self.options.max_turns >= 6

    def levels(self, rng: random.Random) -> Iterator[str]:
        while True:
            yield rng.choice(self._words)

    def level_key(self, level: str) -> str:
        return level_key(level)

    def start(self, level: str) -> None:
        self._word = level
        self._guesses: list[str] = []
        self._open = np.arange(len(self._words))
        self._used = 0

    def board(self) -> str:
        lines = [
            f"{number}. {guess}: {shown(guess, colours(guess, self._word))}"
            for number, guess in enumerate(self._guesses, start=1)
        ]
        if not lines:
            lines = ["No guesses yet."]
        if not self.success and self._turns_left() <= 0:
            lines.append(f"The word was {self._word}.")
        return "\n".join(lines)

    def legal_actions(self) -> tuple[str, ...]:
        """The words of the list (other letters may be guessed too, unless ``listed_only``)."""
        return self._words

    def read_move(self, text: str) -> str:
        word = text.strip(" \t\r\n.,!?\"'`").lower()
        length = self.options.word_length
        if len(word) != length or not (word.isascii() and word.isalpha()):
            said = f", not {text[:MAX_SHOWN]!r}" if text and text.isascii() and text.isprintable() else ""
            raise InvalidAction(f"reply with one word of {length} letters{said}.")
        if self.options.listed_only and word not in numbers(self._words):
            raise InvalidAction(f"{word} is not on the list of words.")
        return word

    def play_move(self, move: str) -> float:
        self._guesses.append(move)
        return 0.0 if self.success else MISS_REWARD

    def expert_action(self) -> str:
        """The guess of largest entropy among the words of the list; a word still possible where two are as good."""
        for guess in self._guesses[self._used :]:
            self._open = self._open[answers(guess, self._words)[self._open] == code(colours(guess, self._word))]
        self._used = len(self._guesses)
        if len(self._open) == len(self._words):
            return opening(self._words)
        return self._words[best_guess(self._words, self._open)]


def level_key(word: str) -> str:
    """Text that tells one level from another."""
    return f"wordle {word}"


@cache
def word_list(length: int) -> tuple[str, ...]:
    """All listed words of ``length`` letters (3 to 5), in alphabetical order."""
    return package_lines(f"words_{length}.txt")


@cache
def vocabulary(length: int, count: int | None) -> tuple[str, ...]:
    """``count`` of the listed words, in alphabetical order: the first ones by hash of each split, in the splits'
    shares, one of each at least.
    """
    words = word_list(length)
    if count is None:
        return words
    by_split: dict[str, list[str]] = {split: [] for split in SPLITS}
    for word in sorted(words, key=lambda word: level_digest(level_key(word))):
        by_split[split_of(level_key(word))].append(word)
    held_out = {
        split: min(len(by_split[split]), max(1, round(share * count)))
        for split, share in ((TEST, TEST_SHARE), (VALIDATION, VALIDATION_SHARE))
    }
    chosen = by_split[TRAIN][: count - sum(held_out.values())]
    for split, share_of_it in held_out.items():
        chosen += by_split[split][:share_of_it]
    rest = [word for split in (TEST, VALIDATION) for word in by_split[split][held_out[split] :]]
    return tuple(sorted(chosen + rest[: count - len(chosen)]))


def colours(guess: str, word: str) -> tuple[int, ...]:
    """Colour of each letter of ``guess``: greens first, then a yellow for each letter of ``word`` that is left, from
    left to right.
    """
    result = [GREEN if letter == right else GREY for letter, right in zip(guess, word, strict=True)]
    left = Counter(right for letter, right in zip(guess, word, strict=True) if letter != right)
    for place, letter in enumerate(guess):
        if result[place] == GREY and left[letter] > 0:
            result[place] = YELLOW
            left[letter] -= 1
    return tuple(result)


def shown(guess: str, colouring: tuple[int, ...]) -> str:
    """The colouring in words, letter by letter."""
    return " ".join(f"{letter}={COLOURS[colour]}" for letter, colour in zip(guess, colouring, strict=True))


def code(colouring: tuple[int, ...]) -> int:
    """A colouring as a number in base 3, below 243 for five letters."""
    number = 0
    for colour in colouring:
        number = 3 * number + colour
    return number


@cache
def numbers(words: tuple[str, ...]) -> dict[str, int]:
    """Place of each word in the list."""
    return {word: number for number, word in enumerate(words)}


@cache
def answer_table(words: tuple[str, ...]) -> NDArray[np.uint8]:
    """Code of the colouring of every word by every word, ``[guess, hidden word]``: :func:`colours` for
    all pairs at once.
    """
    letters = np.array([[ord(letter) for letter in word] for word in words], dtype=np.uint8)
    length = letters.shape[1]
    guess, hidden = letters[:, None, :], letters[None, :, :]
    green = guess == hidden
    taken = green.copy()  # Letters of the hidden word that have answered already.
    table = np.zeros((len(words), len(words)), dtype=np.uint8)
    for place in range(length):
        yellow = np.zeros(table.shape, dtype=bool)
        for other in range(length):
            match = (guess[:, :, place] == hidden[:, :, other]) & ~taken[:, :, other] & ~green[:, :, place] & ~yellow
            taken[:, :, other] |= match
            yellow |= match
        table = 3 * table + np.where(green[:, :, place], GREEN, np.where(yellow, YELLOW, GREY)).astype(np.uint8)
    return table


def answers(guess: str, words: tuple[str, ...]) -> NDArray[np.uint8]:
    """Code of the colouring of ``guess`` for each hidden word, ``[words]``; ``guess`` need not be on the list."""
    row = numbers(words).get(guess)
    if row is not None:
        return answer_table(words)[row]
    return np.array([code(colours(guess, word)) for word in words], dtype=np.uint8)


def best_guess(words: tuple[str, ...], possible: NDArray[np.int64]) -> int:
    """Number of the word whose colouring says most about which of the ``possible`` words is hidden."""
    if len(possible) <= 2:
        return int(possible[0])
    table = answer_table(words)[:, possible].astype(np.int64)
    kinds = 3 ** len(words[0])
    offsets = np.arange(len(words))[:, None] * kinds
    counts = np.bincount((table + offsets).ravel(), minlength=kinds * len(words)).reshape(len(words), kinds)
    uncertainty = (counts * np.log(np.maximum(counts, 1))).sum(axis=1)
    uncertainty[possible] -= 1e-6  # Where two are as good, the one that may be right.
    return int(np.argmin(uncertainty))


@cache
def opening(words: tuple[str, ...]) -> str:
    """The best first guess."""
    return words[best_guess(words, np.arange(len(words)))]
