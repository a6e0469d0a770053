"""What is shared out, and what it is worth to whom: the contexts of "Deal or No Deal" (Lewis et al. 2017)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.support.datasets import open_data

KINDS = ("book", "hat", "ball")
MOST_OF_A_KIND = 4
FEWEST_THINGS, MOST_THINGS = 5, 7
TOTAL_VALUE = 10
"""What the whole pool is worth to each player."""

Share = tuple[int, ...]
"""How many of each kind."""


@dataclass(frozen=True)
class Context:
    """A pool and what a thing of each kind is worth to the first and the second player."""

    counts: Share
    values: tuple[Share, Share]

    def worth(self, seat: int, share: Share) -> int:
        """What ``share`` is worth to a player."""
        return sum(value * number for value, number in zip(self.values[seat], share, strict=True))

    def rest(self, share: Share) -> Share:
        """What ``share`` leaves of the pool."""
        return tuple(number - taken for number, taken in zip(self.counts, share, strict=True))

    def shares(self) -> list[Share]:
        """Everything one player may get."""
        return list(itertools.product(*(range(number + 1) for number in self.counts)))

    def outcomes(self) -> list[tuple[int, int]]:
        """What each way to share out the whole pool is worth to the two."""
        return [(self.worth(0, share), self.worth(1, self.rest(share))) for share in self.shares()]

    def key(self) -> str:
        """The same for a context and the one with the players in each other's place: both belong to one split."""
        return f"negotiation {self.counts} {sorted(self.values)}"


def is_context(context: Context) -> bool:
    """Whether it is one as published: 1 to 4 of each of three kinds, 5 to 7 things in all. The pool is worth 10 to each
    player, every kind is worth something to somebody, and one at least to both.
    """
    one, two = context.values
    return (
        all(1 <= number <= MOST_OF_A_KIND for number in context.counts)
        and FEWEST_THINGS <= sum(context.counts) <= MOST_THINGS
        and all(context.worth(seat, context.counts) == TOTAL_VALUE for seat in (0, 1))
        and all(a + b > 0 for a, b in zip(one, two, strict=True))
        and any(a and b for a, b in zip(one, two, strict=True))
    )


@cache
def all_contexts() -> tuple[Context, ...]:
    """Every context there is, in order: 5,295 of them. The 4,086 that were published for self-play are all among
    them.
    """
    found: list[Context] = []
    for counts in itertools.product(range(1, MOST_OF_A_KIND + 1), repeat=len(KINDS)):
        if not FEWEST_THINGS <= sum(counts) <= MOST_THINGS:
            continue
        limits = [range(TOTAL_VALUE // number + 1) for number in counts]
        values = [
            value
            for value in itertools.product(*limits)
            if sum(a * b for a, b in zip(counts, value, strict=True)) == TOTAL_VALUE
        ]
        contexts = (Context(counts, (one, two)) for one in values for two in values)
        found += [context for context in contexts if is_context(context)]
    return tuple(found)


def read_contexts(path: str, key: str = "env_config.data") -> tuple[Context, ...]:
    """Contexts of a published file: two lines each, one per player, of count and value of each kind in turn
    (``selfplay.txt`` of Lewis et al.: ``1 0 1 4 3 2``).

    Raises: ConfigError: for a file that cannot be read, or lines that are no context; the message names file and line.
    """
    with open_data(path, key) as file:
        rows = [(number, line.split()) for number, line in enumerate(file, start=1) if line.strip()]
    if len(rows) % 2 or not rows:
        raise ConfigError(key, f"{path} has {len(rows)} lines; it needs two for each context, one per player")
    return tuple(_pairs(rows, path, key))


def _pairs(rows: list[tuple[int, list[str]]], path: str, key: str) -> Iterator[Context]:
    for (number, first), (_, second) in zip(rows[::2], rows[1::2], strict=True):
        where = f"{path}, line {number}"
        if any(len(row) != 2 * len(KINDS) or not all(_is_digits(word) for word in row) for row in (first, second)):
            raise ConfigError(key, f"{where}: expected two lines of {2 * len(KINDS)} numbers, count and value in turn")
        one, two = _numbers(first), _numbers(second)
        context = Context(one[::2], values=(one[1::2], two[1::2]))
        if one[::2] != two[::2] or not is_context(context):
            raise ConfigError(key, f"{where}: {' '.join(first)} and {' '.join(second)} are no context of the game")
        yield context


def _numbers(words: list[str]) -> Share:
    return tuple(map(int, words))


def _is_digits(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 2
