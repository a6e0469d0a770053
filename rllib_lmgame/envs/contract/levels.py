"""The level of an episode: the first candidate that falls into the split."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import printable
from rllib_lmgame.envs.contract.splits import ALL, level_digest

Level = TypeVar("Level")

MAX_LEVELS_TRIED = 10_000


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
