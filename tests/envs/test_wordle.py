"""Wordle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rllib_lmgame.envs.contract.splits import SPLITS, level_digest, split_of
from rllib_lmgame.envs.games.words.wordle import (
    GREEN,
    GREY,
    YELLOW,
    Wordle,
    best_guess,
    colours,
    level_key,
    vocabulary,
    word_list,
)
from tests.envs.begun import begun, played_by_expert


def wordle(word: str, **config: object) -> Wordle:
    """A game with a chosen word."""
    return begun(Wordle(show_rules=False, word_length=len(word), **config), level=word)


def reference(guess: str, word: str) -> tuple[int, ...]:
    """The rule said differently: pair equal letters, same place first, then left to right, each letter of the word
    once.
    """
    free = list(range(len(word)))
    result = [GREY] * len(guess)
    for colour, wanted in ((GREEN, True), (YELLOW, False)):
        for i in range(len(guess)):
            pairs = [j for j in free if guess[i] == word[j] and (i == j) == wanted]
            if result[i] == GREY and pairs:
                result[i] = colour
                free.remove(pairs[0])
    return tuple(result)


def test_a_game() -> None:
    game = wordle("apple")
    observation, reward, terminated, _, info = game.step("Paper.")
    assert (observation, reward, terminated) == ("1. paper: p=yellow a=yellow p=green e=yellow r=grey", -1.0, False)
    observation, reward, _, _, info = game.step("apples")
    assert (reward, info["invalid_action"]) == (-1.0, True)
    assert observation.startswith("Invalid action: reply with one word of 5 letters, not 'apples'.")
    observation, reward, terminated, truncated, info = game.step(" APPLE ")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, True)


def test_fewer_words_keep_their_split() -> None:
    for count in (3, 10, 57, 300, 870):
        words = vocabulary(5, count)
        assert len(set(words)) == count and set(words) <= set(word_list(5))
        assert {split_of(level_key(word)) for word in words} == set(SPLITS)
    game = Wordle(num_words=10, split="test")
    levels = {level_digest(level_key(word)) for word in vocabulary(5, 10) if split_of(level_key(word)) == "test"}
    assert {game.reset(seed=seed)[1]["level"] for seed in range(20)} <= levels


@pytest.mark.parametrize("length", [3, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_expert_finds_every_word(length: int) -> None:
    game = Wordle(word_length=length, split="all")
    misses = 0.0
    for word in word_list(length):
        game.reset(seed=0)
        game.start(word)
        reward, info = played_by_expert(game)
        misses -= reward
        assert info["success"]
    assert misses / len(word_list(length)) < {3: 3.6, 4: 2.7, 5: 2.15}[length]


def test_the_expert_takes_the_guess_that_tells_most() -> None:
    words = ("catch", "hatch", "latch", "match", "patch", "clump")
    # "clump" tells catch, latch, match and patch from one another and from hatch; any of these tells itself alone.
    assert words[best_guess(words, np.arange(5))] == "clump"


def test_colours_as_another_way_of_saying_the_rule() -> None:
    for length, letters in ((3, "abc"), (4, "abc")):
        for guess, word in itertools.product(itertools.product(letters, repeat=length), repeat=2):
            assert colours("".join(guess), "".join(word)) == reference("".join(guess), "".join(word))
