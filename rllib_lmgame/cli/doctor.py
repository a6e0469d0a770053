"""``rllib doctor``: what this machine has, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from rllib_lmgame.text import printable


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help=summary,
        description="Look at versions, processor, GPUs, vLLM's build, sandbox, Ray, disks, programs, data sets and "
        "models. Gives 1 if something is wrong that keeps runs from starting.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rllib_lmgame.experiments.checks.machine import WRONG, findings

    if args.json:
        found = list(findings())
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        found = print_findings()
        wrong = sum(finding.state == WRONG for finding in found)
        print(f"\n{wrong} wrong" if wrong else "\nnothing is wrong")
    return 1 if any(finding.state == WRONG for finding in found) else 0


def print_findings() -> list[Any]:
    """Print each finding as soon as it is there, with what mends it below."""
    from rllib_lmgame.experiments.checks.machine import findings

    found = []
    for finding in findings():
        found.append(finding)
        print(printable(f"{finding.state:5}  {finding.about:20}  {finding.text}"))
        if finding.mend:
            print(printable(f"{'':29}mend: {finding.mend}"), flush=True)
    return found
