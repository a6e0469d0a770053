"""``rllib compare``: runs beside each other, as a table and as a figure."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import printable


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "compare",
        help=summary,
        description="Final figures of runs with their intervals, the keys in which they differ, and with --out their "
        "learning curves. Trials whose configurations differ in nothing but the seed are seeds of one run; a trial "
        "without results is left out.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directory of a trial, or of an experiment: its trials")
    parser.add_argument("--metric", metavar="NAME", help="of the curves (default: success or return while training)")
    parser.add_argument(
        "--out", metavar="PATH", help="write PATH.png, PATH.csv and, of held-out levels, PATH-heldout.csv"
    )
    parser.add_argument("--title", default="", help="title of the figure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rllib_lmgame.experiments.results.comparison import compare, comparison_lines
    from rllib_lmgame.experiments.results.curves import read_curves, trial_directories
    from rllib_lmgame.experiments.results.figures import draw, write_tables

    curves, metric, left_out = read_curves(trial_directories(expanded(name) for name in args.runs), args.metric)
    for line in left_out:
        print(f"note: {printable(line)}", file=sys.stderr)
    said = compare(curves, metric)
    written: list[Path] = []
    if args.out is not None:
        out = expanded(args.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        written = [draw(curves, out, metric, args.title), *write_tables(curves, out, metric)]
    if args.json:
        print(json.dumps({**said, "written": [str(path) for path in written]}, indent=2))
        return 0
    for line in (*comparison_lines(said), *([""] if written else []), *map(str, written)):
        print(printable(line))
    return 0
