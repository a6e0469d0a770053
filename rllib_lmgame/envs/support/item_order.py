"""An order of the items of a list for each seed, without a list of the order.

A seed of 31 bits is an order (the upper 11) and a place in it (the lower 20); further bits are those of later places.
Places of one order that follow each other are items one after another, each once before any comes again; then another
order of all begins.
"""

from __future__ import annotations

import hashlib

_BITS = 20
PLACES = 2**_BITS
"""Places that seeds of 31 bits tell apart."""

_ROUNDS = 4


def seed_of_place(order: int, place: int) -> int:
    """The seed of a place in one of 2,048 orders."""
    return (place // PLACES) << 31 | (order % 2**11) << _BITS | place % PLACES


def item_of_seed(seed: int, count: int) -> int:
    """Which of ``count`` items a seed means."""
    order, place = seed >> _BITS & 2**11 - 1, (seed >> 31) * PLACES + seed % PLACES
    return permuted(place % count, count, f"{order} {place // count}")


def permuted(number: int, count: int, key: str) -> int:
    """Where a permutation of ``range(count)`` puts ``number``; ``key`` says which one.

    A Feistel network over the next power of four, walked until it falls below ``count`` (Black and Rogaway, 2002).
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = number >> half, number & mask
        for step in range(_ROUNDS):
            digest = hashlib.blake2b(f"{key} {step} {right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        number = left << half | right
        if number < count:
            return number
