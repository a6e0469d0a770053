"""``rllib games``: list the games, check one."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.base.step_timer import CALL_LIMIT_S, CHECK_LIMIT_S
from rllib_lmgame.base.text import columns
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import FILTER, GAME, JSON, Actions, Option, env_config, env_config_of, seconds

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


@options.command("list all games", FILTER, JSON)
def list_games(args: argparse.Namespace) -> int:
    from rllib_lmgame.envs.registry import games

    specs = [
        spec
        for spec in games().values()
        if args.filter.lower() in " ".join((spec.game_id, *spec.roles, spec.extra or "", spec.summary)).lower()
    ]
    if not specs:
        where = "its id, roles, extra or description; `rllib games list` shows all"
        raise ConfigError("", f"no game has {args.filter!r} in {where}")
    if args.json:
        return options.print_json([asdict(spec) for spec in specs])
    head, *rows = columns([tuple(COLUMNS), *((spec.game_id, *spec.cells()) for spec in specs)], left=len(COLUMNS))
    print(head)
    for family in dict.fromkeys(spec.family for spec in specs):
        print("", family, *(row for spec, row in zip(specs, rows, strict=True) if spec.family == family), sep="\n")
    print("\n" + "\n".join(f"{name}: {meaning}" for name, meaning in COLUMNS.items() if meaning))
    return 0


@options.command(
    "check that a game keeps the contract",
    GAME,
    env_config("the game"),
    Option("--call-timeout S", "seconds a call may take, as in training", seconds, CALL_LIMIT_S),
    Option("--timeout S", "seconds all checks may take", seconds, CHECK_LIMIT_S),
)
def check_game(args: argparse.Namespace) -> int:
    from rllib_lmgame.envs.checking.apart import check_apart
    from rllib_lmgame.envs.registry import game_spec

    own_options = env_config_of(args)
    find_in_current_directory([args.game, own_options])
    spec = game_spec(args.game)
    report = check_apart(spec.game_id, own_options, args.call_timeout, args.timeout)
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


command = Actions("List the text games, or check one.", {"list": list_games, "check": check_game})
