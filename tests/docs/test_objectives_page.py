"""The page on algorithms names the ways of averaging that there are."""

from __future__ import annotations

import re
from pathlib import Path

from rllib_lmgame.settings.sections.token_ppo import AGGREGATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def test_ways_of_averaging_are_told() -> None:
    (rows,) = re.findall(r"^\| `aggregation` \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert re.findall(r"^\| `(\w+)`", rows, re.MULTILINE) == list(AGGREGATIONS)
