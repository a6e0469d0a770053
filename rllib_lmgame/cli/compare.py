"""``rllib compare``: several runs as one table and one figure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import printable
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import JSON, Option, Section


@options.command(
    "Print the final metrics of runs with their intervals and the keys in which they differ; with --out, write their "
    "learning curves. Trials whose configurations differ only in the seed are seeds of one run; a trial without "
    "results is left out.",
    Option("RUN...", "directory of a trial, or of an experiment: its trials", dest="runs"),
    Option("--metric NAME", "of the curves (default: success or return while training)"),
    Option("--out PATH", "write PATH.png, PATH.csv and, of held-out levels, PATH-heldout.csv"),
    Section("with --out", Option("--title TEXT", "title of the figure", default="")),
    JSON,
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.experiments.results.comparison import compare, comparison_lines, draw, write_tables
    from rllib_lmgame.experiments.results.curves import read_curves, trial_directories

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
        return options.print_json({**said, "written": [str(path) for path in written]})
    for line in (*comparison_lines(said), *([""] if written else []), *map(str, written)):
        print(printable(line))
    return 0
