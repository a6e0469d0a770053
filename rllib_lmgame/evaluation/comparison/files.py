"""The directory of an evaluation: ``results.jsonl`` has a record an episode, written as it ends.

What was played there once is never played again: the same command goes on, and one with further players, games, levels
or samples plays these alone. Other weights, options or opponents under a name that is there are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from rllib_lmgame.base.json_files import write_json
from rllib_lmgame.evaluation.recorded import RecordDirectory, difference, plain
from rllib_lmgame.rollouts.records import EpisodeSummary

RESULTS = "results"
KEY = "evaluated"
"""In a record of ``results.jsonl``: who played what, and the episode's numbers."""
GROWING = ("players", "games")
"""Settings to which more may come."""


class Place(NamedTuple):
    """Which episode: the ``sample``-th of a player on the ``level``-th level of a game."""

    player: str
    game: str
    level: int
    sample: int


class EvaluationDirectory(RecordDirectory):
    what = "evaluation"
    settings_file = "evaluation.json"
    records_file = f"{RESULTS}.jsonl"

    def played(self, settings: Mapping[str, Any]) -> dict[Place, EpisodeSummary]:
        """What was played already. Raises: ConfigError: with other settings, or a line is no record."""
        there = self.settings()
        if there is None:
            return {}
        wanted = plain(settings)
        for section in GROWING:
            before = there.get(section) or {}
            gone = next((name for name in before if name not in wanted[section]), None)
            self.refuse(None if gone is None else f"{section}.{gone} was given, now it is not")
            wanted[section] = {name: value for name, value in wanted[section].items() if name in before}
        self.refuse(difference(there, wanted))
        found: dict[Place, EpisodeSummary] = {}
        for place, summary in self.results(_read):
            found.setdefault(place, summary)
        return found

    def write_table(self, numbers: Mapping[str, Any], table: str) -> None:
        write_json(self.path / f"{RESULTS}.json", numbers, indent=1)
        (self.path / f"{RESULTS}.md").write_text(table, encoding="utf-8")


_PLACE, _SUMMARY = TypeAdapter(Place), TypeAdapter(EpisodeSummary)


def _read(record: Mapping[str, Any]) -> tuple[Place, EpisodeSummary]:
    own = dict(record[KEY])
    summary = _SUMMARY.validate_json(json.dumps(own.pop("summary")), strict=True)
    return _PLACE.validate_json(json.dumps(own), strict=True), summary
