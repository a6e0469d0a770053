"""The directory of a tournament: its settings and the records of its games.

1. A game stands in ``games.jsonl`` whole or not at all; half a line, left by a full disk or a kill, is cut off later.
2. A directory belongs to one tournament: other players, games, options or orders, or a second process, are refused.
3. Nothing outside it is written: a directory that holds a link is refused.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.evaluation.tournament.results import GameResult, result_of
from rllib_lmgame.evaluation.tournament.standings import Standings
from rllib_lmgame.json_files import read_mapping, write_json
from rllib_lmgame.lock import locked
from rllib_lmgame.rollouts.log.episode_log import EpisodeLog, numbered_records
from rllib_lmgame.storage import expanded

SETTINGS_FILE = "tournament.json"
GAMES_FILE = "games.jsonl"
FAILURES_FILE = "failures.jsonl"
STANDINGS_FILE = "standings.json"
ORDERED = ("games", "players")
"""Settings whose order says who meets whom, and which game has which number."""
MAX_SETTINGS_BYTES = 4_000_000


class TournamentDirectory:
    def __init__(self, path: str | Path) -> None:
        self.path = expanded(path)
        self._games = EpisodeLog(self.path / GAMES_FILE)
        self._failures = EpisodeLog(self.path / FAILURES_FILE)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out while inside.

        Raises: ConfigError: if another is in, or the directory holds a link or anything else but plain files.
        """
        for entry in self.path.iterdir():
            if entry.is_symlink() or not entry.is_file():
                raise ConfigError("--out", f"{entry} is a link or no file; a tournament's directory holds files alone")
        taken = f"another process plays the tournament in {self.path}"
        with locked(self.path, "--out", taken, "name another directory, or wait for its end"):
            yield

    def played(self, settings: Mapping[str, Any]) -> dict[str, GameResult]:
        """Games already played of the tournament with these settings, by episode id.

        Raises: ConfigError: if the directory holds another tournament, or something else.
        """
        file = self.path / SETTINGS_FILE
        wanted = json.loads(json.dumps(settings))
        if not file.exists():
            if (self.path / GAMES_FILE).exists():
                raise ConfigError("--out", f"{self.path} holds {GAMES_FILE}, but no {SETTINGS_FILE}; name another one")
            return {}
        try:
            there = read_mapping(file, MAX_SETTINGS_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError("--out", str(error)) from None
        different = difference(there, wanted) or other_order(there, wanted)
        if different is not None:
            raise ConfigError("--out", f"{self.path} holds another tournament: {different}; name another directory")
        return self._results()

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begin or go on with the tournament of the settings given to :meth:`played`; the directory is now taken."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / FAILURES_FILE).unlink()
        if not (self.path / SETTINGS_FILE).exists():
            write_json(self.path / SETTINGS_FILE, settings, indent=1)

    def _results(self) -> dict[str, GameResult]:
        games = self.path / GAMES_FILE
        if not games.exists():
            return {}
        _cut_after_last_line(games)
        results = {}
        for number, record in numbered_records(games):
            try:
                result = result_of(record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ConfigError("--out", f"{games}, line {number}: no record of a game ({error!r})") from None
            results[result.episode_id] = result
        return results

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the record of a played game. Raises: OSError: if it could not be written."""
        self._games.write([dict(record)])

    def add_failure(self, failure: Mapping[str, Any]) -> None:
        self._failures.write([dict(failure)])


def _cut_after_last_line(path: Path) -> None:
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            position = file.read(end - start).rfind(b"\n")
            if position >= 0:
                end = start + position + 1
                break
            end = start
        if end < size:
            file.truncate(end)


def difference(there: Any, wanted: Any, where: str = "") -> str | None:
    """The first thing in which two values of plain data differ, in words; ``None`` if they are the same."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in there if key not in wanted)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in there:
                return f"{place} was not given, now it is"
            if key not in wanted:
                return f"{place} was given, now it is not"
            found = difference(there[key], wanted[key], place)
            if found is not None:
                return found
        return None
    return None if there == wanted else f"{where} was {there!r}, now it is {wanted!r}"


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
    names = [player.player for player in standings.players]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([standings.game, *names])
        for name, row in zip(names, standings.matrix.tolist(), strict=True):
            writer.writerow([name, *("" if math.isnan(cell) else f"{cell:.6g}" for cell in row)])


def write_png(standings: Standings, path: Path) -> bool:
    """The matrix as a picture; ``False`` if matplotlib is not installed."""
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
    low, high = (0.0, 1.0) if standings.zero_sum else (None, None)
    image = axes.imshow(standings.matrix, cmap="RdYlGn" if standings.zero_sum else "viridis", vmin=low, vmax=high)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    for i, row in enumerate(standings.matrix.tolist()):
        for j, cell in enumerate(row):
            if not math.isnan(cell):
                axes.text(j, i, f"{cell:.2f}", ha="center", va="center", color="black", fontsize=8)
    what = (
        "share of the points of the row against the column"
        if standings.zero_sum
        else "mean return of the row at a table with the column"
    )
    axes.set_title(f"{standings.game}\n{what}", fontsize=9, parse_math=False)
    figure.colorbar(image, ax=axes, shrink=0.8)
    figure.savefig(path, dpi=120)
    return True
