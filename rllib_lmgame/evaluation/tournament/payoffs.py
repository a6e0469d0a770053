"""Pay-off matrices as files: CSV for programs, a picture for people where matplotlib is installed."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

from rllib_lmgame.evaluation.tournament.standings import Standings


def matrix_name(standings: Standings) -> str:
    """Name of the files of a game's matrix, without their ending."""
    return "payoffs-" + re.sub(r"[^\w.-]+", "-", standings.game.rpartition("/")[2])


def write_csv(standings: Standings, path: Path) -> None:
    """The matrix with names; cells of those who never met are empty."""
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
