"""``rllib example``: the tuned examples that come with the package."""

from __future__ import annotations

import argparse
import itertools
import re
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import FILTER, Actions, Option

CPU = "On two CPU cores"
KINDS = (CPU, "On one GPU", "On four GPUs", "On eight GPUs", "On 32 GPUs")
"""Hardware, as the description of an example for it says; the first one where it says nothing."""

_PACKAGE = Path(__file__).resolve().parent.parent
EXAMPLES = next(
    (folder for folder in (_PACKAGE / "tuned_examples", _PACKAGE.parent / "tuned_examples") if folder.is_dir()),
    _PACKAGE / "tuned_examples",
)
"""In a checkout without symbolic links (a ZIP file, Windows) they are beside the package."""
ID = Option("ID", "as `rllib example list` shows it", dest="example")


def examples() -> dict[str, Path]:
    """Files by id: the path below ``tuned_examples`` without its ending."""
    found = sorted(p for p in EXAMPLES.rglob("*") if p.suffix in {".yaml", ".yml"})
    return {p.relative_to(EXAMPLES).with_suffix("").as_posix(): p for p in found}


def describe_example(path: Path) -> str:
    """The first sentence of the comment that an example begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    told = itertools.dropwhile(lambda line: line.startswith("# yaml-language-server"), lines)
    comment = itertools.takewhile(lambda line: line.startswith("#"), told)
    return re.split(r"(?<=\.)\s", " ".join(line.lstrip("# ").strip() for line in comment))[0]


def find_example(name: str) -> Path:
    """The file of an example id. Raises: ConfigError: if there is none; names the nearest."""
    known = examples()
    wanted = name.removesuffix(".yaml").removesuffix(".yml")
    ends = [key for key in known if key.rsplit("/", 1)[-1] == wanted]
    if wanted in known or len(ends) == 1:
        return known.get(wanted) or known[ends[0]]
    hint = did_you_mean(wanted, known, "see `rllib example list`")
    raise ConfigError("", f"there is no example {name!r}; {hint}")


@options.command("list the examples", FILTER)
def list_examples(args: argparse.Namespace) -> int:
    rows = [(name, describe_example(path)) for name, path in examples().items()]
    rows = [row for row in rows if args.filter.lower() in " ".join(row).lower()]
    if not rows:
        of_filter = f"no example has {args.filter!r} in its name or description"
        raise ConfigError("", of_filter if args.filter else f"no examples in {EXAMPLES}")
    width = max(len(name) for name, _ in rows)
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, description in rows:
        kind = next((kind for kind in KINDS if kind[1:] in description), CPU)
        kinds[kind].append(f"{name:{width}}  {description}")
    print("\n\n".join("\n".join([kind, *lines]) for kind, lines in kinds.items() if lines))
    return 0


@options.command("print an example's file", ID)
def get_example(args: argparse.Namespace) -> int:
    print(find_example(args.example).read_text(encoding="utf-8"), end="")
    return 0


@options.command(
    "run an example; flags of `rllib train file` may follow",
    ID,
    Option("FLAG", "flags of `rllib train`", dest="flags", nargs=argparse.REMAINDER),
    epilog="example:\n  rllib example run quickstart-sokoban --set config.lr=1e-4 --stop '{rl_iteration: 5}' --dry-run",
)
def run_example(args: argparse.Namespace) -> int:
    from rllib_lmgame.cli.main import make_parser

    parsed = make_parser("train").parse_args(["train", "file", str(find_example(args.example)), *args.flags])
    parsed.started = args.started
    return int(parsed.run(parsed))


command = Actions("The tuned examples.", {"list": list_examples, "get": get_example, "run": run_example})
