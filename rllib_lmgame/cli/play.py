"""``rllib play``: play a game in the terminal, alone or against players of any kind, or watch them play."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from typing import Any

from rllib_lmgame.base.errors import CheckpointError, ConfigError, MissingDependencyError
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli.games import TRUST_HELP, add_env_config, parse_env_config
from rllib_lmgame.cli.player_options import add_player_options, player_settings, seed
from rllib_lmgame.cli.signals import Terminated
from rllib_lmgame.policies.scripted import FORMS
from rllib_lmgame.settings.sections.text_rollouts import CALL_LIMIT_S


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "play",
        help=summary,
        description=(
            "Play a game in the terminal. With --checkpoint its policy plays: you watch a game for one player, and "
            "take one seat of a game for several. With --against a player takes the other seats, and with "
            "both the checkpoint plays it while you watch. With --players every seat gets a player of its own."
        ),
    )
    parser.add_argument(
        "game",
        metavar="GAME",
        nargs="?",
        help="id, entry point name or package.module:Class (default: the checkpoint's game)",
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="a checkpoint of LMGamePPO or LMGameSFT, or the directory of its trial"
    )
    parser.add_argument("--trust-checkpoint", action="store_true", help=TRUST_HELP)
    parser.add_argument("--against", metavar="PLAYER", help="who plays the other seats, as --players names them")
    parser.add_argument(
        "--players",
        metavar="[SEAT=]PLAYER",
        nargs="+",
        action="extend",
        help=f"who takes which seat; without SEAT all other seats but yours. A player is {FORMS}",
    )
    parser.add_argument(
        "--seat", metavar="AGENT", help="your seat among others; `none` to watch (default: the first of several seats)"
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="policy of the checkpoint that plays (default: as in training)"
    )
    add_player_options(parser)
    parser.add_argument("--no-pause", action="store_true", help="do not wait for Enter after each turn that you watch")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the level (default 0)")
    add_env_config(parser, "the game, on top of the checkpoint's")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    from rllib_lmgame.cli.game_table import Left
    from rllib_lmgame.envs import GameError

    try:
        return _play(args)
    except (ConfigError, CheckpointError, MissingDependencyError, GameError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Terminated:
        raise
    except (Left, KeyboardInterrupt):
        print("left")
        return 0


def _play(args: argparse.Namespace) -> int:
    from rllib_lmgame.algorithms.games import found_beside
    from rllib_lmgame.cli.game_table import Person, play_at_table
    from rllib_lmgame.cli.seating import OpenCheckpoint, players_of
    from rllib_lmgame.envs import make_session
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.evaluation.players.naming import without_names
    from rllib_lmgame.rollouts.plans import EpisodePlan, stable_seed
    from rllib_lmgame.rollouts.players import seat_seed
    from rllib_lmgame.rollouts.records import GameConfig

    game, env_config = args.game, parse_env_config(args.env_config)
    find_in_current_directory([game, args.against, without_names(args.players or ()), env_config])
    _check(args)
    named = () if game is None else (GameConfig(env=game_spec(game).game_id, env_config=dict(env_config)),)
    settings = player_settings(args, named, at_once=1)
    checkpoint = None if args.checkpoint is None else OpenCheckpoint.at(args.checkpoint, settings)
    if checkpoint is not None:
        game, env_config = checkpoint.game(game, env_config)
    found_beside(GameConfig(env=game, env_config=env_config))
    session = make_session(game, env_config)
    try:
        plan = EpisodePlan(f"play-{args.seed}", 0, args.seed, "", 0)
        players = players_of(args, session, plan, checkpoint, settings)
        line_up = {agent: player.assignment for agent, player in players.items()}
        if args.players is not None:
            print(f"{game}; " + ", ".join(f"{agent}: {player.name}" for agent, player in players.items()))
        if checkpoint is not None:
            against = f" against {args.against}" if args.against is not None else ""
            people = ", ".join(agent for agent, player in players.items() if isinstance(player, Person))
            print(f"{game} {env_config}; {checkpoint.place} plays{against}" + (f", you are {people}" if people else ""))

        def seed(plan: EpisodePlan, agent: str) -> int:
            return seat_seed(plan, agent) if args.players is not None else stable_seed(plan.seed, agent, "player")

        limit_s = CALL_LIMIT_S
        if checkpoint is not None:
            limit_s = checkpoint.config.text_rollout_options.env_step_timeout_s
        plan = replace(plan, line_up=line_up)
        return asyncio.run(play_at_table(session, players, plan, seed=seed, pause=not args.no_pause, limit_s=limit_s))
    finally:
        session.close()


def _check(args: argparse.Namespace) -> None:
    if args.players is not None:
        for flag, value in (("--checkpoint", args.checkpoint), ("--against", args.against), ("--policy", args.policy)):
            if value is not None:
                raise ConfigError(flag, "does not go with --players, which names everybody: SEAT=PLAYER")
    elif args.config is not None:
        raise ConfigError("--config", "is for hf: and openai: players, see --players")
    elif args.time_limit is not None:
        raise ConfigError("--time-limit", "is for endpoints and players of your own, see --players")
    if args.checkpoint is not None:
        return
    if args.game is None:
        others = "" if args.players is not None else " or a --checkpoint"
        raise ConfigError("", f"name a game (`rllib games list` shows them){others}")
    if args.players is not None:
        return
    if args.seat is not None and args.against is None:
        raise ConfigError("", "--seat needs a --checkpoint or --against, or --players; alone you play every seat")
    for flag, value in (("--policy", args.policy), ("--temperature", args.temperature)):
        if value is not None:
            raise ConfigError("", f"{flag} needs a --checkpoint")
