"""``rllib data``: the published data sets that a configuration names as ``data:NAME``."""

from __future__ import annotations

import argparse
import sys

from rllib_lmgame.base.text import columns, size_text
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import JSON, Actions, Option

HEAD = ("name", "here", "licence", "size", "what it is")
PARTS_HEAD = ("part", "here", "files")


@options.command(
    "list the sets, or the parts of one, and which are here",
    Option("[NAME]", "the set whose parts are listed", dest="name"),
    JSON,
)
def list_sets(args: argparse.Namespace) -> int:
    from rllib_lmgame.downloads.places import PREFIX, check_name, data_root, here, named
    from rllib_lmgame.downloads.table import SETS

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
        return options.print_json(listed)
    if name is not None:
        parts = SETS[name].parts
        rows = [(part, "yes" if part in found[name] else "no", ", ".join(parts[part])) for part in parts]
        print("\n".join(columns([PARTS_HEAD, *rows], left=len(PARTS_HEAD))))
        print(f"\n`data:{name}:PART` names one, `rllib data fetch {name}` brings them into {data_root()}.")
        return 0
    sets = [
        (name, _words(found[name], len(each.parts)), each.licence, size_text(each.size), each.about)
        for name, each in SETS.items()
    ]
    print("\n".join(columns([HEAD, *sets], left=len(HEAD))))
    print(f"\n`rllib data fetch NAME` brings one into {data_root()}.")
    return 0


def _words(here: list[str], parts: int) -> str:
    return "no" if not here else "yes" if len(here) == parts else f"{len(here)} of {parts} parts"


@options.command(
    "download sets, or parts of them",
    Option("NAME[:PART]...", "of `rllib data list`", dest="names"),
)
def fetch_sets(args: argparse.Namespace) -> int:
    from rllib_lmgame.downloads.fetch import fetch
    from rllib_lmgame.downloads.places import PREFIX, named

    names = [name.removeprefix(PREFIX) for name in args.names]
    for name in names:  # A misspelt name is told before the others are fetched.
        named(PREFIX + name, "")
    for name in names:
        fetch(name)
    return 0


@options.command(
    "print where the files of a set or part are", Option("NAME[:PART]", "of `rllib data list`", dest="name")
)
def print_paths(args: argparse.Namespace) -> int:
    from rllib_lmgame.downloads.places import PREFIX, named

    for path in named(PREFIX + args.name.removeprefix(PREFIX), "").paths():
        print(path)
    return 0


@options.command("read a set's files and compare their hashes", Option("NAME", "of `rllib data list`"))
def verify_set(args: argparse.Namespace) -> int:
    from rllib_lmgame.downloads.fetch import verify
    from rllib_lmgame.downloads.places import PREFIX

    name = args.name.removeprefix(PREFIX)
    problems = verify(name)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        print(f"remove what is wrong, and `rllib data fetch {name}` brings it again", file=sys.stderr)
        return 1
    print(f"{name}: all files are what they were when they were fetched")
    return 0


command = Actions(
    "Published data sets. A configuration names them data:NAME or data:NAME:PART.",
    {"list": list_sets, "fetch": fetch_sets, "path": print_paths, "verify": verify_set},
)
