"""``rllib games``: list the games, check one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.base.text import columns
from rllib_lmgame.settings.sections.text_rollouts import CALL_LIMIT_S, CHECK_LIMIT_S

if TYPE_CHECKING:
    from rllib_lmgame.envs.registry import GameSpec

COLUMNS = {
    "id": "",
    "players": "seats in the game",
    "replies": "most replies of one player in an episode, at the default options",
    "return": "smallest and largest sum of rewards one player can get in an episode, at the default options",
    "solver": (
        "there is an expert: `rllib collect`, `warm_start`, players `solver` and `minimax`, and `!` in `rllib play`"
    ),
    "extra": "what installs the packages the game needs: pip install 'rllib-lmgame[EXTRA]'",
    "what it is": "",
}


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser("games", help=summary, description=__doc__)
    commands = parser.add_subparsers(dest="games_command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list all games")
    listing.add_argument(
        "-f",
        "--filter",
        metavar="TEXT",
        default="",
        help="only those whose id, roles, extra or description has this text",
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    checking = commands.add_parser("check", help="check that a game keeps the contract")
    checking.add_argument("game", metavar="ID", help="id, entry point name or package.module:Class")
    add_env_config(checking, "the game")
    checking.add_argument(
        "--call-timeout",
        type=float,
        default=CALL_LIMIT_S,
        metavar="S",
        help="seconds a call may take (default %(default)g, as in training)",
    )
    checking.add_argument(
        "--timeout",
        type=float,
        default=CHECK_LIMIT_S,
        metavar="S",
        help="seconds all checks may take (default %(default)g)",
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    try:
        if args.games_command == "list":
            return _list(args.filter, args.json)
        return _check(args.game, parse_env_config(args.env_config), args.call_timeout, args.timeout)
    except (ConfigError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


TRUST_HELP = "run code that it names or holds"
"""What ``--trust-checkpoint`` does, where a checkpoint plays."""


def add_verbosity(group: Any, shown: str) -> None:
    """Add ``-v``, the same flag everywhere."""
    group.add_argument("-v", "--log-info", dest="verbosity", action="store_const", const=1, default=0, help=shown)


def add_env_config(parser: Any, whose: str) -> None:
    parser.add_argument(
        "--env-config", metavar="YAML", help=f"options of {whose}, as YAML or JSON text: '{{num_boxes: 2}}'"
    )


def parse_env_config(text: str | None) -> dict[str, Any]:
    """``env_config`` from the command line, empty by default. Raises: ConfigError: if it is no mapping."""
    from rllib_lmgame.experiments.files.reading import parse_value

    if text is None:
        return {}
    try:
        value = parse_value(text, "--env-config")
    except ConfigError as error:
        raise ConfigError("--env-config", f"{error.message}; write it like '{{num_boxes: 2}}'") from None
    if not isinstance(value, dict):
        raise ConfigError("--env-config", f"must be a mapping like '{{num_boxes: 2}}', got {text!r}")
    return value


def _list(wanted: str, as_json: bool) -> int:
    from dataclasses import asdict

    from rllib_lmgame.envs.registry import games

    specs = [spec for spec in games().values() if wanted.lower() in _searched(spec)]
    if not specs:
        raise ConfigError(
            "", f"no game has {wanted!r} in its id, roles, extra or description; `rllib games list` shows all"
        )
    if as_json:
        print(json.dumps([asdict(spec) for spec in specs], indent=2, ensure_ascii=False, default=str))
        return 0
    cells = [tuple(COLUMNS), *((spec.game_id, *spec.cells()) for spec in specs)]
    head, *rows = columns(cells, left=len(COLUMNS))
    print(head)
    for family in dict.fromkeys(spec.family for spec in specs):
        print("", family, *(row for spec, row in zip(specs, rows, strict=True) if spec.family == family), sep="\n")
    print("\n" + "\n".join(f"{name}: {meaning}" for name, meaning in COLUMNS.items() if meaning))
    return 0


def _searched(spec: GameSpec) -> str:
    return " ".join((spec.game_id, *spec.roles, spec.extra or "", spec.summary)).lower()


def _check(game: str, env_config: Mapping[str, Any], call_limit_s: float, limit_s: float) -> int:
    from tqdm import tqdm

    from rllib_lmgame.envs.checking.apart import check_apart
    from rllib_lmgame.envs.registry import game_spec

    for flag, seconds in (("--call-timeout", call_limit_s), ("--timeout", limit_s)):
        if not 0 < seconds < float("inf"):
            raise ConfigError(flag, f"must be a number of seconds above 0, got {seconds:g}")
    find_in_current_directory([game, env_config])
    spec = game_spec(game)
    with tqdm(total=0, unit="check", disable=not sys.stderr.isatty(), leave=False) as bar:

        def progress(over: int, of: int) -> None:
            bar.total = of
            bar.update(over - bar.n)

        report = check_apart(spec.game_id, env_config, call_limit_s, limit_s, progress)
    for problem in report.problems:
        print(f"- {problem}")
    for warning in report.warnings:
        print(f"- warning: {warning}")
    warned = f", {_number(len(report.warnings), 'warning')}" if report.warnings else ""
    verdict = _number(len(report.problems), "problem") if report.problems else "keeps the contract"
    print(f"{spec.game_id}: {verdict}{warned}")
    return 1 if report.problems else 0


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"
