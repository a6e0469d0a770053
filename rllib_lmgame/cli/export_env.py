"""``rllib export-env``: a game as other trainers load one."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli import options
from rllib_lmgame.cli.init import write_new
from rllib_lmgame.cli.options import GAME, Option, env_config, env_config_of
from rllib_lmgame.envs.registry import AT_ADDRESSES
from rllib_lmgame.experiments.files import scaffolds

if TYPE_CHECKING:
    from rllib_lmgame.envs.contract.session import GameSession

_PROJECT = """[project]
name = {name}
version = "0.1.0"
description = {description}
requires-python = ">=3.11"
dependencies = [{package}, "verifiers>=0.4,<0.5"]

[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = [{module}]
"""


@options.command(
    "Write a game as TRL's GRPOTrainer (environment_factory) or verifiers load one.",
    GAME,
    Option("--for {trl,verifiers}", "the trainer that loads it", required=True, dest="trainer"),
    Option("--to DIR", "where the files go (default: here; verifiers: a new directory)"),
    env_config("the game"),
    Option(
        "--seats PLAYER...",
        "who sits where, in the order of the seats: remote (the policy, once), or a scripted player",
    ),
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.base.storage import expanded
    from rllib_lmgame.envs.registry import game_spec, make_session

    own_options = env_config_of(args)
    find_in_current_directory([args.game, own_options])
    spec = game_spec(args.game)
    with closing(make_session(spec.game_id, own_options)) as session:
        others = _others(session, args.seats)
    module = module_name(spec.game_id)
    name = module.replace("_", "-")
    files = {f"{module}.py": source(args.trainer, module, spec.game_id, own_options, others)}
    if args.trainer == "verifiers":
        package = f"rllib-lmgame[{spec.extra}]" if spec.extra else "rllib-lmgame"
        words = {"name": name, "description": f"{spec.game_id} for verifiers", "package": package, "module": module}
        files["pyproject.toml"] = _PROJECT.format_map({key: json.dumps(word) for key, word in words.items()})
    directory = expanded(args.to if args.to is not None else "." if args.trainer == "trl" else name)
    write_new(directory, files)
    for file in files:
        print(directory / file)
    if args.trainer == "trl":
        call = "GRPOTrainer(..., environment_factory=Game, train_dataset=levels(512))"
        print("", f"from {module} import Game, levels", call, sep="\n")
    else:
        print("", f"pip install -e {directory}", f"vf-eval {name} -m MODEL --select.limit 16 --no-push", sep="\n")
    return 0


def module_name(game_id: str) -> str:
    """The module of a game: ``lmgame_frozen_lake`` of ``lmgame/FrozenLake-v0``."""
    kind, _, rest = game_id.partition(":")
    served = kind in {form.partition(":")[0] for form in AT_ADDRESSES}
    short = kind if served else re.sub(r"-v\d+$", "", re.split(r"[/:.]", rest or kind)[-1])
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+", "_", short)
    return f"lmgame_{words.strip('_').lower() or 'game'}"


def source(trainer: str, module: str, game_id: str, chosen: Mapping[str, Any], others: Mapping[str, str]) -> str:
    """The text of the module. Raises: ConfigError: an option that Python cannot write down."""
    try:
        written = ast.literal_eval(repr(chosen)) == chosen
    except (ValueError, SyntaxError):
        written = False
    if not written:
        raise ConfigError("--env-config", f"{chosen!r} holds what cannot be written into a file of Python")
    text = (Path(scaffolds.__file__).parent / f"{trainer}_game.py").read_text(encoding="utf-8")
    values = {"GAME": game_id, "OPTIONS: dict[str, Any]": chosen, "OTHERS: dict[str, str]": others}
    lines = [
        next((f"{name} = {value!r}" for name, value in values.items() if line.startswith(f"{name} = ")), line)
        for line in text.split("\n")
    ]
    name = module if trainer == "trl" else module.replace("_", "-")
    return "\n".join(lines).replace("NAME", name, 1)


def _others(session: GameSession, seats: list[str] | None) -> dict[str, str]:
    """Seat -> scripted player, of all but one. Raises: ConfigError: not one seat is left."""
    from rllib_lmgame.servers.served_episode import REMOTE, seated

    players = seated(seats, session)
    if list(players.values()).count(REMOTE) != 1:
        known = ", ".join(players)
        raise ConfigError("--seats", f"the policy takes one seat of {known}; write it like: --seats remote random")
    return {seat: player for seat, player in players.items() if player != REMOTE}
