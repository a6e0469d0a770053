"""The reports of this package by name: what ``report: learning`` stands for. Importing this loads none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_lmgame.settings.trust import is_name, is_number

OWN_REPORTS: Mapping[str, str] = {
    "learning": "rllib_lmgame.evaluation.learning_report:learning_report",
    "exploitability": "rllib_lmgame.evaluation.exploitability_report:exploitability_report",
}
"""Name -> import path; a setting may give either."""

FORMER_PATHS: Mapping[str, str] = {
    "rllib_lmgame.algorithms.report:learning_report": "learning",
    "rllib_lmgame.algorithms.kuhn_report:exploitability_report": "exploitability",
}
"""Where reports stood before: files and experiments from then go on."""


def path_of_report(name: str) -> str:
    """Import path of a report, by name, by a former path, or of a user's own, which is ``name`` itself."""
    name = FORMER_PATHS.get(name, name)
    return OWN_REPORTS.get(name, name)


def is_own_report(value: Any) -> bool:
    """Whether a ``report`` setting names a report of this package, with plain arguments."""
    arguments = dict(value) if isinstance(value, Mapping) else {"type": value}
    name = arguments.pop("type", None)
    own = isinstance(name, str) and path_of_report(name) in OWN_REPORTS.values()
    return own and all(is_number(item) or is_name(item) for item in arguments.values())
