"""Items of published tasks by their numbers: as an option names them, and as they end an item's id."""

from __future__ import annotations

import re

from rllib_lmgame.base.errors import ConfigError

_PART = re.compile(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*")
_ID = re.compile(r"(?:.*_)?(\d{1,9})", re.DOTALL)
MOST_ITEMS = 2_000_000
"""Of one list."""


def numbers_in(text: str | int, key: str) -> list[int] | None:
    """The numbers that ``310`` or ``0-9, 44`` names, in this order, each once; ``None`` for any other text.

    Raises: ConfigError: a range goes down, or there are more than :data:`MOST_ITEMS`.
    """
    found: dict[int, None] = {}
    parts = [_PART.fullmatch(part) for part in str(text).split(",")]
    if None in parts:
        return None
    for part in filter(None, parts):
        low, high = int(part[1]), int(part[2] or part[1])
        if not low <= high < low + MOST_ITEMS:
            raise ConfigError(key, f"{part[0].strip()!r} must go from a number to a larger one, {MOST_ITEMS:,} at most")
        found.update(dict.fromkeys(range(low, high + 1)))
        if len(found) > MOST_ITEMS:
            raise ConfigError(key, f"{str(text)[:80]!r} names more than {MOST_ITEMS:,} items")
    return list(found)


def number_of_item(name: str) -> int | None:
    """The number that an id is or ends in, as ``textcraft_12`` does; ``None`` without one."""
    found = _ID.fullmatch(name)
    return None if found is None else int(found[1])
