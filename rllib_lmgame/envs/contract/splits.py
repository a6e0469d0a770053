"""Training, validation and test levels: told apart by a stable hash of the level itself.

Disjoint seeds are not disjoint levels: small games draw the same level from many seeds. Here the level decides
its split, so a level met in training can never be met in a test, whatever the seeds were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

TRAIN, VALIDATION, TEST, ALL = "train", "validation", "test", "all"
SPLITS = (TRAIN, VALIDATION, TEST)
SPLIT_CHOICES = (*SPLITS, ALL)
"""Values of the ``split`` option; ``all`` does not filter."""

TEST_SHARE = 0.1
VALIDATION_SHARE = 0.1


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
