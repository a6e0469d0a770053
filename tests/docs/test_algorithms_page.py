"""The table of estimators names those that there are, and says of each what it says of itself."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from rllib_lmgame.learners.advantages import (
    ADVANTAGE_ESTIMATORS,
    needs_critic,
    needs_groups,
    own_scale,
    reads,
)
from rllib_lmgame.learners.objectives.policy_losses import POLICY_LOSSES
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

SECOND_NAME = "role_baseline"
"""Of `rae`."""

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


def names_in(text: str, start: str, end: str) -> set[str]:
    """Names between two words of a text."""
    return set(re.findall(r"`(\w+)`", text.partition(start)[2].partition(end)[0]))


def test_sentences_name_the_estimators_that_they_are_about() -> None:
    own_scaled = {name for name, each in ADVANTAGE_ESTIMATORS.items() if own_scale(each)}
    assert names_in(ESTIMATORS, "**Scale.**", " are used as they are") == own_scaled
    docs = {field.name: field.metadata["doc"] for field in dataclasses.fields(TokenPPOOptions)}
    assert names_in(docs["normalize_advantages"], "a scale of their own (", ")") == own_scaled
    assert names_in(docs["advantage_estimator"], "(algorithms.md): ", ", or ") == {*ADVANTAGE_ESTIMATORS} - {
        SECOND_NAME
    }
    assert names_in(docs["policy_loss"], "(algorithms.md#policy-losses): ", ", or ") == {*POLICY_LOSSES}


def test_the_page_of_options_says_which_estimators_do_not_discount() -> None:
    undiscounted = {name for name, each in ADVANTAGE_ESTIMATORS.items() if not reads(each, "gamma")}
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith("| `gamma`"))
    assert names_in(line, "; ", " have none") == undiscounted


def test_the_table_names_their_options() -> None:
    options = {
        name: set(inspect.signature(each).parameters) if inspect.isclass(each) else set()
        for name, each in ADVANTAGE_ESTIMATORS.items()
    }
    shown = {name: set(re.findall(r"`(\w+)`", cells[5])) - {"episodes", "steps"} for name, cells in rows().items()}
    assert shown == options
