"""``rllib data``: the published data sets that a configuration names as ``data:NAME``."""

from __future__ import annotations

import argparse

from rllib_lmgame.base.text import columns, size_text
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Actions, Option


@options.command(
    "list the sets, or the parts of one, and which are here",
    Option("[NAME]", "the set whose parts are listed", dest="name"),
)
def list_sets(args: argparse.Namespace) -> int:
    from rllib_lmgame.downloads.places import PREFIX, check_name, data_root, here, named
    from rllib_lmgame.downloads.table import SETS

    if args.name is not None:
        name = args.name.removeprefix(PREFIX)
        check_name(name, "")
        found = here(named(PREFIX + name))
        rows = [("part", "here", "files")]
        rows += [(part, "yes" if part in found else "no", ", ".join(of)) for part, of in SETS[name].parts.items()]
        print("\n".join(columns(rows, left=len(rows[0]))))
        print(f"\n`data:{name}:PART` names one, `rllib data fetch {name}` brings them into {data_root()}.")
        return 0
    sets = [("name", "here", "licence", "size", "what it is")]
    for name, each in SETS.items():
        count, parts = len(here(named(PREFIX + name))), len(each.parts)
        there = "no" if not count else "yes" if count == parts else f"{count} of {parts} parts"
        sets.append((name, there, each.licence, size_text(each.size), each.about))
    print("\n".join(columns(sets, left=len(sets[0]))))
    print(f"\n`rllib data fetch NAME` brings one into {data_root()}.")
    return 0


@options.command("download sets, or parts of them", Option("NAME[:PART]...", "of `rllib data list`", dest="names"))
def fetch_sets(args: argparse.Namespace) -> int:
    from rllib_lmgame.downloads.fetch import fetch
    from rllib_lmgame.downloads.places import PREFIX, named

    names = [name.removeprefix(PREFIX) for name in args.names]
    for name in names:  # A misspelt name is told before the others are fetched.
        named(PREFIX + name, "")
    for name in names:
        fetch(name)
    return 0


command = Actions(
    "Published data sets. A configuration names them data:NAME or data:NAME:PART.",
    {"list": list_sets, "fetch": fetch_sets},
)
