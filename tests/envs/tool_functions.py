"""Functions that tests offer as tools."""

from __future__ import annotations

import threading
from typing import Any, Literal

STOCK = {"nails": 12, "ropes": 3}


def stock(name: str, unit: Literal["pieces", "boxes"] = "pieces", least: int | None = None) -> dict[str, Any]:
    """How many of something there are.

    More of this is not shown.
    """
    return {"name": name, unit: STOCK[name], "enough": least is None or STOCK[name] >= least}


def double(number: float) -> float:
    """Twice a number."""
    return 2 * number


def shout() -> str:
    return "HA" * 5_000


def torn() -> str:
    return "half of a pair: \ud800"


def hang() -> str:
    threading.Event().wait()
    return ""


def leave() -> str:
    raise SystemExit(3)


def many(*numbers: int) -> int:
    return sum(numbers)


NO_FUNCTION = 5
