"""The directory of a tournament: its settings, the records of its games, and the tables.

A directory belongs to one tournament: other players, games, options or orders are refused. What else holds stands in
:mod:`rllib_lmgame.evaluation.recorded`.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.base.json_files import write_json
from rllib_lmgame.evaluation.recorded import RecordDirectory, difference, plain
from rllib_lmgame.evaluation.tournament.results import GameResult, result_of
from rllib_lmgame.evaluation.tournament.standings import Standings

STANDINGS_FILE = "standings.json"


class TournamentDirectory(RecordDirectory):
    what = "tournament"
    settings_file = "tournament.json"
    records_file = "games.jsonl"

    def played(self, settings: Mapping[str, Any]) -> dict[str, GameResult]:
        """Games already played of the tournament with these settings, by episode id.

        Raises: ConfigError: if the directory holds another tournament, or something else.
        """
        there = self.settings()
        if there is None:
            return {}
        different = difference(there, plain(settings))
        self.refuse(different and re.sub(r"^games_each\b", "--games", different))
        return {result.episode_id: result for _, result in self.results(result_of)}


def write_standings(path: Path, content: Sequence[Mapping[str, Any]], counts: Mapping[str, Mapping[str, int]]) -> None:
    write_json(path / STANDINGS_FILE, {"standings": list(content), "counts": dict(counts)}, indent=1)


def matrix_name(standings: Standings) -> str:
    return "payoffs-" + re.sub(r"[^\w.-]+", "-", standings.game.rpartition("/")[2])


def write_csv(standings: Standings, path: Path) -> None:
    """Mean pay-offs: of the row's player at a table with the column's."""
    names = [player.player for player in standings.players]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([standings.game, *names])
        for name, row in zip(names, standings.returns.tolist(), strict=True):
            writer.writerow([name, *("" if math.isnan(cell) else f"{cell:.6g}" for cell in row)])
