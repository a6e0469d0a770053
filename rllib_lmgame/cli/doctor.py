"""``rllib doctor``: check this machine and print the command that fixes each problem; ``--gpu`` tests its GPUs,
``--learning`` whether runs learn.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from rllib_lmgame.base.text import one_line, printable
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import JSON, OUT_FILE, Option, Section
from rllib_lmgame.experiments.selftest.checks import CHECKS

if TYPE_CHECKING:
    from rllib_lmgame.experiments.selftest.running import Outcome

LOG_LINES = 8
"""Lines of a failed check's output that a terminal is shown; JSON has more."""


@options.command(
    "Check versions, processor, GPUs, vLLM's build, sandbox, Ray and disks. Returns 1 if a problem keeps runs from "
    "starting.",
    JSON,
    Option("--gpu", "train, push weights and compare numbers on the GPUs of this machine; returns 1 if a check fails"),
    Option("--learning", "train on four small games for two minutes; returns 1 if one is not learnt"),
    Section("with --gpu", Option("--checks NAME...", "only these", choices=tuple(check.name for check in CHECKS))),
    Section(
        "with --gpu or --learning",
        Option("--model NAME", "hub id, directory or known name (default: random weights)"),
        OUT_FILE,
    ),
    epilog="With --gpu each run of a check has two and a half minutes at most, all checks of one GPU have twelve. "
    "Without a GPU, or with CUDA_VISIBLE_DEVICES= in front, checks that have a CPU form run in it (ten minutes); the "
    "others are skipped, with the reason.",
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.experiments.checks.machine import WRONG, findings

    if args.gpu or args.learning:
        return _train(args)
    found = []
    for finding in findings():
        found.append(finding)
        if not args.json:  # Each is printed as soon as it is there, with what fixes it below.
            print(printable(f"{finding.state:5}  {finding.about:20}  {finding.text}"))
            if finding.mend:
                print(printable(f"{'':29}mend: {finding.mend}"), flush=True)
    wrong = sum(finding.state == WRONG for finding in found)
    if args.json:
        options.print_json([asdict(finding) for finding in found])
    else:
        print(f"\n{wrong or 'nothing is'} wrong")
    return int(wrong > 0)


def _train(args: argparse.Namespace) -> int:
    """Run the checks of the GPUs, or that of learning, and print each result as soon as it is there."""
    from rllib_lmgame.base.new_files import new_file, writing
    from rllib_lmgame.experiments.checks.machine import UsableGpus, findings
    from rllib_lmgame.experiments.selftest.learning import LEARNING
    from rllib_lmgame.experiments.selftest.running import FAILED, outcomes
    from rllib_lmgame.policies.model.files import check_model

    checks = [check for check in CHECKS if args.gpu and (not args.checks or check.name in args.checks)]
    checks += [LEARNING] * args.learning
    if args.model is not None:
        check_model(args.model, "--model")
    with ExitStack() as held:
        file = None if args.out is None else held.enter_context(new_file(args.out))
        here, began, found = UsableGpus.look(), time.monotonic(), []
        if not args.json:
            cards = [f"{card.name}, {card.memory:.0f} GB" for card in here.cards]
            print(printable("; ".join(cards) or f"{here.why_none}: checks run in their CPU form"), flush=True)
        for outcome in outcomes(checks, here, args.model):
            found.append(outcome)
            if not args.json:
                print("\n".join(outcome_lines(outcome)), flush=True)
        seconds = round(time.monotonic() - began, 1)
        report = {
            "form": here.form,
            "gpus": [asdict(card) for card in here.cards],
            "model": args.model,
            "seconds": seconds,
            "checks": [asdict(outcome) for outcome in found],
            "machine": [asdict(finding) for finding in findings()],
        }
        if args.json:
            options.print_json(report)
        else:
            states = ("passed", "failed", "skipped")
            counts = ", ".join(f"{sum(each.state == state for each in found)} {state}" for state in states)
            where = "" if here.form == "gpu" else "; nothing of this ran on a GPU"
            print(f"\n{counts} in {seconds:.0f} s{where}")
        if file is not None:
            with writing(args.out):
                file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if any(outcome.state == FAILED for outcome in found) else 0


def outcome_lines(outcome: Outcome) -> list[str]:
    """The result of a check, and below it what it measured, as a table."""
    took = f" ({outcome.seconds:.0f} s)" if outcome.seconds else ""
    why = f": {one_line(outcome.why)}" if outcome.why else ""
    lines = [printable(f"{outcome.state:7}  {outcome.check:16}  {outcome.about}{took}{why}")]
    for each in outcome.measured:
        value = "no number" if each["value"] is None else f"{each['value']:.4g}"
        bounds = f"  {'' if each['ok'] else 'NOT '}{each['bounds']}" if each["bounds"] else ""
        lines.append(printable(f"{'':27}{each['name']:48} {value:>10} {each['unit']:9}{bounds}".rstrip()))
    return lines + [printable(f"{'':27}| {line}") for line in outcome.log.splitlines()[-LOG_LINES:]]
