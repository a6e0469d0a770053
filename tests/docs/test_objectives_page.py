"""The page on algorithms names what there is, with the defaults there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.settings.sections.token_ppo import AGGREGATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def table(head: str) -> list[list[str]]:
    """The cells of the table whose first column has this head."""
    (rows,) = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()]


def test_ways_of_averaging_are_told() -> None:
    assert [row[0].strip("`") for row in table("`aggregation`")] == list(AGGREGATIONS)


SETTINGS = {
    "policy_loss.low": {"token_ppo": {"policy_loss": {"type": "cispo", "low": 0.1}}},
    "kl.gradient": {"token_ppo": {"kl": {"in": "reward", "gradient": "k3"}}},
    "kl_coeff": {"kl_coeff": 0.5},
    "kl_target": {"kl_target": 0.5},
}
"""Options that have no effect beside the others, each with its section."""


def test_options_without_effect_are_refused_or_not_as_is_told() -> None:
    (refused,) = re.findall(r"An option of the loss that has no effect.*?\n?\((.*?)\) is refused", PAGE, re.DOTALL)
    (taken,) = re.findall(r"Numbers that may stay where runs are compared\nare not: (.*?)\.\n", PAGE, re.DOTALL)
    for text, is_refused in ((refused, True), (taken, False)):
        names = [name for name in re.findall(r"`([\w.]+)`", text) if name in SETTINGS]
        assert len(names) == 2
        for name in names:
            written = {"env": "lmgame/Sokoban-v0", **SETTINGS[name]}
            if is_refused:
                with pytest.raises(ConfigError, match=f"{name}: has no effect"):
                    LMGamePPOConfig().update_from_dict(written)
            else:
                LMGamePPOConfig().update_from_dict(written).validate()
