"""The page on algorithms names what there is, with the defaults there are."""

from __future__ import annotations

import re
from pathlib import Path

from rllib_lmgame.learners.objectives import POLICY_LOSSES
from rllib_lmgame.learners.options import AGGREGATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def table(head: str) -> list[list[str]]:
    """The cells of the table whose first column has this head."""
    (rows,) = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()]


def test_policy_losses_are_told_with_their_bounds() -> None:
    told = {name.strip("`"): tuple(rest[1:4]) for name, *rest in table("`policy_loss`")}
    there = {
        name: (
            *(f"{bound:g}" if bound else "no" for bound in (loss.clip_low, loss.clip_high)),
            ("no", "yes")[loss.dual_clip],
        )
        for name, loss in POLICY_LOSSES.items()
    }
    assert told == there


def test_ways_of_averaging_are_told() -> None:
    assert [row[0].strip("`") for row in table("`loss_aggregation`")] == list(AGGREGATIONS)
