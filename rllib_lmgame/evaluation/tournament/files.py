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
ORDERED = ("games", "players")
"""Settings whose order says who meets whom, and which game has which number."""


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
        wanted = plain(settings)
        different = difference(there, wanted) or other_order(there, wanted)
        self.refuse(different and re.sub(r"^games_each\b", "--games", different))
        return {result.episode_id: result for _, result in self.results(result_of)}


def other_order(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Which of the mappings in ``ORDERED`` has its keys in another order; the settings are otherwise equal."""
    for section in ORDERED:
        before, now = ([*settings.get(section, {})] for settings in (there, wanted))
        if before != now:
            return f"{section} were {_listed(before)}, now they are in the order {_listed(now)}"
    return None


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(key.partition("|")[0] for key in keys)


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


def write_png(standings: Standings, path: Path) -> bool:
    """The pay-offs as a picture; ``False`` if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    names = [player.player for player in standings.players]
    size = 2.5 + 0.7 * len(names)
    figure = Figure(figsize=(size + 1.0, size), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    known = [abs(cell) for row in standings.returns.tolist() for cell in row if not math.isnan(cell)]
    most = max(known, default=0.0) if standings.zero_sum else None
    low, colours = (None, "viridis") if most is None else (-most, "RdYlGn")
    image = axes.imshow(standings.returns, cmap=colours, vmin=low, vmax=most)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    for i, row in enumerate(standings.returns.tolist()):
        for j, cell in enumerate(row):
            if not math.isnan(cell):
                axes.text(j, i, f"{cell:.2f}", ha="center", va="center", color="black", fontsize=8)
    what = "mean return of the row at a table with the column"
    axes.set_title(f"{standings.game}\n{what}", fontsize=9, parse_math=False)
    figure.colorbar(image, ax=axes, shrink=0.8)
    figure.savefig(path, dpi=120)
    return True
