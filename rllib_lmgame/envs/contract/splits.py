"""Training, validation and test levels: told apart by a stable hash of the level itself.

Disjoint seeds are not disjoint levels: small games draw the same level from many seeds. Here the level decides
its split, so a level met in training can never be met in a test, whatever the seeds were.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import printable

Level = TypeVar("Level")

TRAIN, VALIDATION, TEST, ALL = "train", "validation", "test", "all"
SPLITS = (TRAIN, VALIDATION, TEST)
SPLIT_CHOICES = (*SPLITS, ALL)
"""Values of the ``split`` option; ``all`` does not filter."""

TEST_SHARE = 0.1
VALIDATION_SHARE = 0.1
MAX_LEVELS_TRIED = 10_000


def level_digest(key: str) -> str:
    """16 hexadecimal digits that name a level; the same in every process and on every machine."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def split_of_digest(digest: str) -> str:
    """Split of a level: 10 % test, 10 % validation, 80 % train, by :func:`level_digest`."""
    position = int(digest[:8], 16) / 2**32
    if position < TEST_SHARE:
        return TEST
    return VALIDATION if position < TEST_SHARE + VALIDATION_SHARE else TRAIN


def split_of(key: str) -> str:
    """Split of the level that ``key`` describes completely."""
    return split_of_digest(level_digest(key))


def split_few(keys: Iterable[str]) -> dict[str, str]:
    """Splits of a set of levels so small that shares by hash would leave a split empty.

    The levels are ordered by their hash; the first tenth (one at least) is the test split, the next the
    validation split.

    Raises: ValueError: for fewer than three levels.
    """
    ordered = sorted(set(keys), key=level_digest)
    if len(ordered) < len(SPLITS):
        raise ValueError(f"{len(ordered)} levels cannot be split in three")
    share = max(1, round(TEST_SHARE * len(ordered)))
    return {key: TEST if i < share else VALIDATION if i < 2 * share else TRAIN for i, key in enumerate(ordered)}


def choose_level(
    levels: Iterable[Level], split: str, key_of: Callable[[Level], str], split_of: Callable[[str, Level], str]
) -> tuple[Level, str]:
    """The level to play, and its digest.

    Args:
        levels: Candidates.
        split: Split it must fall into; ``all`` takes the first candidate.
        key_of: Everything that tells a level from another one.
        split_of: Split of a level, given its digest as well.

    Raises: ConfigError: if none of the first :data:`MAX_LEVELS_TRIED` candidates falls into the split.
    """
    keys: set[str] = set()
    tried = 0
    for level in itertools.islice(levels, MAX_LEVELS_TRIED):
        tried += 1
        key = key_of(level)
        digest = level_digest(key)
        if split in (ALL, split_of(digest, level)):
            return level, digest
        if len(keys) < 2:
            keys.add(key)
    raise _no_level(split, tried, keys)


def _no_level(split: str, tried: int, keys: Collection[str]) -> ConfigError:
    """The error where no candidate falls into ``split``, with its cause.

    Args:
        split: The split asked for.
        tried: Candidates that ``levels`` gave.
        keys: Their keys, two at most.
    """
    if not tried:
        return ConfigError("env_config", "with these options the game's `levels` gives no level at all")
    if len(keys) == 1 and tried > 1:
        key = printable(next(iter(keys)).replace("\0", ", "))
        message = (
            f"all {tried} levels tried have the key {key[:60]!r}, which does not fall into split "
            f"{split!r}: either these options leave a single level (widen them or take split 'all'), or the game's "
            "`level_key` leaves out what tells its levels apart"
        )
        return ConfigError("env_config.split", message)
    return ConfigError(
        "env_config.split",
        f"with these options none of {tried} levels falls into split {split!r}; widen them or take split 'all'",
    )
