"""The table of estimators names those that there are, and says of each what it says of itself."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from rllib_lmgame.learners.advantages import ADVANTAGE_ESTIMATORS, needs_critic, needs_groups

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
ESTIMATORS = PAGE.partition("\n## Objectives")[0]


def rows() -> dict[str, list[str]]:
    """Name -> cells of the first table; a row may have two names."""
    lines = [line.strip("|").split(" | ") for line in ESTIMATORS.splitlines() if line.startswith("| `")]
    return {name: cells for cells in lines for name in re.findall(r"`(\w+)`", cells[0])}


def test_the_table_names_the_registered_estimators_and_what_they_need() -> None:
    found = {name: [cell.strip() for cell in cells[3:5]] for name, cells in rows().items()}
    words = {True: "yes", False: "no"}
    assert found == {
        name: [words[needs_groups(each)], words[needs_critic(each)]] for name, each in ADVANTAGE_ESTIMATORS.items()
    }


def test_the_table_names_their_options() -> None:
    options = {
        name: set(inspect.signature(each).parameters) if inspect.isclass(each) else set()
        for name, each in ADVANTAGE_ESTIMATORS.items()
    }
    shown = {name: set(re.findall(r"`(\w+)`", cells[5])) - {"episodes", "steps"} for name, cells in rows().items()}
    assert shown == options
