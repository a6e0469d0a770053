"""Tables of results: cells with their heads, as aligned columns or as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rllib_lmgame.base.text import columns

Row = Sequence[tuple[str, str]]
"""Cells of a row, each with the head of its column."""


def number(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


def interval(bounds: Sequence[float] | None, form: str) -> str:
    if not bounds or not all(map(math.isfinite, bounds)):
        return "-"
    return " - ".join(format(bound, form) for bound in bounds)


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The head, then the rows."""
    return [[head for head, _ in rows[0]], *([cell for _, cell in row] for row in rows)] if rows else []


def lines(rows: Sequence[Row], left: int) -> list[str]:
    """The head and a line for each row; the first ``left`` columns are aligned to the left, the others to the right."""
    return columns(cells(rows), left)


def markdown(rows: Sequence[Row], left: int) -> str:
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in cells(rows))
    marks = ["---"] * left + ["--:"] * (len(head) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, marks, *body))


def spent_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Requests and tokens of each player, where there are some."""
    return [
        f"{player}: " + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in spent.items())
        for player, spent in counts.items()
        if spent
    ]
