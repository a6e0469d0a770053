"""Functions that tests offer as tools."""

from __future__ import annotations

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


def leave() -> str:
    raise SystemExit(3)


NO_FUNCTION = 5
