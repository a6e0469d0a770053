"""``rllib data``: the published data sets that a configuration names as ``data:NAME``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rllib_lmgame.base.text import columns, size_text

HEAD = ("name", "here", "licence", "size", "what it is")
PARTS_HEAD = ("part", "here", "files")


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "data",
        help=summary,
        description="Published data sets. A configuration names them data:NAME or data:NAME:PART.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser("list", help="which sets there are, or parts of one, and which are here")
    listing.add_argument("name", nargs="?", metavar="NAME", help="the set whose parts are listed")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=list_sets)
    fetching = actions.add_parser("fetch", help="bring sets, or parts of them, to this machine")
    fetching.add_argument("names", nargs="+", metavar="NAME[:PART]")
    fetching.add_argument("--from", dest="source", metavar="DIR", help="take the files from this folder, ask nobody")
    fetching.set_defaults(run=fetch_sets)
    finding = actions.add_parser("path", help="print where the files of a set or part are")
    finding.add_argument("name", metavar="NAME[:PART]")
    finding.set_defaults(run=print_paths)
    checking = actions.add_parser("verify", help="read a set's files and compare their hashes")
    checking.add_argument("name", metavar="NAME")
    checking.set_defaults(run=verify_set)


def list_sets(args: argparse.Namespace) -> int:
    """Print the table of sets, or of one set's parts."""
    from rllib_lmgame.data_sets.places import PREFIX, check_name, data_root, here, named
    from rllib_lmgame.data_sets.table import SETS

    name = None if args.name is None else args.name.removeprefix(PREFIX)
    if name is not None:
        check_name(name, "")
    found = {each: here(named(PREFIX + each)) for each in SETS if name in (None, each)}
    if args.json:
        listed = [
            {
                "name": name,
                "about": each.about,
                "licence": each.licence,
                "bytes": each.size,
                "parts": list(each.parts),
                "here": found[name],
                "from": sorted({source.origin for source in each.sources}),
            }
            for name in found
            for each in [SETS[name]]
        ]
        print(json.dumps(listed, indent=2))
        return 0
    if name is not None:
        parts = SETS[name].parts
        rows = [(part, "yes" if part in found[name] else "no", ", ".join(parts[part])) for part in parts]
        print("\n".join(columns([PARTS_HEAD, *rows], left=len(PARTS_HEAD))))
        print(f"\n`data:{name}:PART` names one, `rllib data fetch {name}` brings them into {data_root()}.")
        return 0
    rows = [
        (name, _words(found[name], len(each.parts)), each.licence, size_text(each.size), each.about)
        for name, each in SETS.items()
    ]
    print("\n".join(columns([HEAD, *rows], left=len(HEAD))))
    print(f"\n`rllib data fetch NAME` brings one into {data_root()}.")
    return 0


def _words(here: list[str], parts: int) -> str:
    return "no" if not here else "yes" if len(here) == parts else f"{len(here)} of {parts} parts"


def fetch_sets(args: argparse.Namespace) -> int:
    """Fetch each of the sets named."""
    from rllib_lmgame.base.errors import ConfigError
    from rllib_lmgame.base.storage import expanded
    from rllib_lmgame.data_sets.fetch import fetch
    from rllib_lmgame.data_sets.places import PREFIX, named

    source: Path | None = None
    if args.source is not None and not (source := expanded(args.source)).is_dir():
        raise ConfigError("--from", f"no such folder: {args.source}")
    names = [name.removeprefix(PREFIX) for name in args.names]
    for name in names:  # A misspelt name is told before the others are fetched.
        named(PREFIX + name, "")
    for name in names:
        fetch(name, source)
    return 0


def print_paths(args: argparse.Namespace) -> int:
    """Print a line for each file."""
    from rllib_lmgame.data_sets.places import PREFIX, named

    for path in named(PREFIX + args.name.removeprefix(PREFIX), "").paths():
        print(path)
    return 0


def verify_set(args: argparse.Namespace) -> int:
    """Compare hashes; gives 1 if a file differs."""
    from rllib_lmgame.data_sets.fetch import verify
    from rllib_lmgame.data_sets.places import PREFIX

    name = args.name.removeprefix(PREFIX)
    problems = verify(name)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        print(f"remove what is wrong, and `rllib data fetch {name}` brings it again", file=sys.stderr)
        return 1
    print(f"{name}: all files are what they were when they were fetched")
    return 0
