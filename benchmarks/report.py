"""How the figures of a benchmark are summed up and shown."""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = tuple[str, str, str, float | None, bool]
"""Key of a figure, what it is, its format, its target, and whether that is a lower limit."""


def table(report: dict[str, Any], rows: Sequence[Row]) -> str:
    """The medians as a Markdown table, with their range and the targets."""
    lines = ["| figure | median | range | target | |", "|---|---|---|---|---|"]
    for key, name, style, target, at_least in rows:
        value = report["medians"][key]
        values = [row[key] for row in report["repeats"]]
        wanted, verdict = "", ""
        if target is not None:
            wanted = f"{'at least' if at_least else 'at most'} {target:g}"
            verdict = "reached" if (value >= target if at_least else value <= target) else "**missed**"
        lines.append(
            f"| {name} | {value:{style}} | {min(values):{style}} .. {max(values):{style}} | {wanted} | {verdict} |"
        )
    return "\n".join(lines)


def show(report: dict[str, Any], rows: Sequence[Row], file: str | None) -> None:
    """Print the machine and the table, and write all figures to ``file`` if one is named."""
    from machine import describe

    print(f"\n{describe(report['machine'])}\n\n{table(report, rows)}")
    if file:
        Path(file).write_text(json.dumps(report, indent=1), encoding="utf-8")


def medians(repeats: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {key: statistics.median(row[key] for row in repeats) for key in repeats[0]}


def command(file: str) -> str:
    """How this benchmark was called."""
    return shlex.join(["python", os.path.relpath(file), *sys.argv[1:]])
