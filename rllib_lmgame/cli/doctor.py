"""``rllib doctor``: what this machine has, what is missing, and the command that mends it; ``--gpu`` tries its GPUs."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import one_line, printable

if TYPE_CHECKING:
    from rllib_lmgame.experiments.acceptance.running import Outcome

LOG_LINES = 8
"""Lines of a failed check's output that a terminal is shown; JSON has more."""


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help=summary,
        description="Look at versions, processor, GPUs, vLLM's build, sandbox, Ray, disks, programs, data sets and "
        "models. Gives 1 if something is wrong that keeps runs from starting.",
        epilog="With --gpu it trains, pushes weights and compares numbers on the GPUs of this machine, and gives 1 if "
        "a check fails. Each check has at most five minutes. Without a GPU, or with CUDA_VISIBLE_DEVICES= in front, "
        "checks that can run in a CPU form (ten minutes); the others are skipped, and it is said why.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--gpu", action="store_true", help="run what only GPUs can show: see below")
    parser.add_argument("--checks", nargs="+", metavar="NAME", help="with --gpu: these checks alone")
    parser.add_argument(
        "--model", metavar="NAME", help="with --gpu: hub id, directory or known name (default: random weights)"
    )
    parser.add_argument("--out", metavar="FILE", help="with --gpu: write the report as JSON; it must not exist yet")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rllib_lmgame.experiments.checks.machine import WRONG, findings

    if args.gpu:
        return _accept(args)
    for flag in ("checks", "model", "out"):
        if getattr(args, flag) is not None:
            raise ConfigError(f"--{flag}", "goes with --gpu")
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


def _accept(args: argparse.Namespace) -> int:
    """Run the checks of the GPUs, and tell of each as soon as it is over."""
    from rllib_lmgame.base.new_files import new_file, writing
    from rllib_lmgame.experiments.acceptance.checks import Here, named
    from rllib_lmgame.experiments.acceptance.running import FAILED, outcomes
    from rllib_lmgame.experiments.checks.machine import findings
    from rllib_lmgame.policies.model.files import check_model

    checks = named(args.checks or ())
    if args.model is not None:
        check_model(args.model, "--model")
    with ExitStack() as held:
        file = None if args.out is None else held.enter_context(new_file(args.out))
        here, began, found = Here.look(), time.monotonic(), []
        if not args.json:
            cards = [f"{card.name}, {card.memory:.0f} GB" for card in here.cards]
            print(printable("; ".join(cards) or f"{here.why_none}: checks run in their CPU form"), flush=True)
        for outcome in outcomes(checks, here, args.model):
            found.append(outcome)
            if not args.json:
                print("\n".join(outcome_lines(outcome)), flush=True)
        report = {
            "form": here.form,
            "gpus": [asdict(card) for card in here.cards],
            "model": args.model,
            "seconds": round(time.monotonic() - began, 1),
            "checks": [asdict(outcome) for outcome in found],
            "machine": [asdict(finding) for finding in findings()],
        }
        print(json.dumps(report, indent=2) if args.json else _last_line(found, here.form, report["seconds"]))
        if file is not None:
            with writing(file.wanted):
                file.scratch.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    status = 0 if file is None else file.status()
    return 1 if any(outcome.state == FAILED for outcome in found) else status


def outcome_lines(outcome: Outcome) -> list[str]:
    """What became of a check, and below it what it measured, in the form of a table."""
    took = f" ({outcome.seconds:.0f} s)" if outcome.seconds else ""
    why = f": {one_line(outcome.why)}" if outcome.why else ""
    lines = [printable(f"{outcome.state:7}  {outcome.check:16}  {outcome.about}{took}{why}")]
    for each in outcome.measured:
        value = "no number" if each["value"] is None else f"{each['value']:.4g}"
        bounds = f"  {'' if each['ok'] else 'NOT '}{each['bounds']}" if each["bounds"] else ""
        lines.append(printable(f"{'':27}{each['name']:48} {value:>10} {each['unit']:9}{bounds}".rstrip()))
    return lines + [printable(f"{'':27}| {line}") for line in outcome.log.splitlines()[-LOG_LINES:]]


def _last_line(found: list[Outcome], form: str, seconds: float) -> str:
    counts = [f"{sum(each.state == state for each in found)} {state}" for state in ("passed", "failed", "skipped")]
    where = "" if form == "gpu" else "; nothing of this ran on a GPU"
    return f"\n{', '.join(counts)} in {seconds:.0f} s{where}"
