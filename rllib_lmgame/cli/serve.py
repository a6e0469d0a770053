"""``rllib serve``: games for programs of others, in the protocols that these speak, or a policy as OpenAI's clients ask
models.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import check_free, in_address, is_loopback, listen
from rllib_lmgame.cli.game_list import FORM, listed, named_games
from rllib_lmgame.cli.games import TRUST_HELP, add_env_config, parse_env_config
from rllib_lmgame.cli.player_options import add_player_options, player_settings, whole
from rllib_lmgame.settings.sections.text_rollouts import CALL_LIMIT_S

PROTOCOLS = ("openenv", "agentgym", "mrlm")
STOP_S = 5.0
LONGEST_TOKEN = 4096
OF_GAMES: dict[str, Any] = {
    "env_config": None,
    "protocol": PROTOCOLS[0],
    "seats": None,
    "max_sessions": 256,
    "session_timeout": 600.0,
    "call_limit": CALL_LIMIT_S,
    "tasks": 512,
}
OF_POLICIES: dict[str, Any] = {
    "at_once": 16,
    "trust_checkpoint": False,
    "temperature": None,
    "time_limit": None,
    "config": None,
}
"""Flags that only one kind of server has, and what holds without them."""


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve",
        help=summary,
        description="Serve games until Ctrl-C. Programs play them by the protocol of OpenEnv or AgentGym, at "
        "http://HOST:PORT/NAME, or at http://HOST:PORT if it is one game; or by MRLM's gRPC, as NAME. Or serve a "
        "policy to OpenAI's clients, at http://HOST:PORT/v1.",
    )
    served = parser.add_mutually_exclusive_group(required=True)
    served.add_argument("--games", nargs="+", action="extend", metavar="GAMES", help=f"joined by commas, each {FORM}")
    served.add_argument(
        "--policy", metavar="CHECKPOINT", help="a checkpoint, DIR:POLICY or DIR:MEMBER, or hf:DIR_OR_ID"
    )
    of_games, of_policies = (parser.add_argument_group(f"with {flag}") for flag in ("--games", "--policy"))
    add_env_config(of_games, "all games")
    of_games.add_argument("--protocol", choices=PROTOCOLS, help=f"({PROTOCOLS[0]})")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (%(default)s)")
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token-file", metavar="FILE", help="what clients have to know is its first line (default: made up and shown)"
    )
    token.add_argument("--no-token", action="store_true", help="serve every program of this machine")
    of_games.add_argument(
        "--seats",
        nargs="+",
        metavar="PLAYER",
        help="who sits where, in the order of the seats, if a client does not say it: remote (the client), or a "
        "scripted player (default: the client takes all)",
    )
    of_games.add_argument(
        "--max-sessions", type=whole(), metavar="N", help=f"clients at once ({OF_GAMES['max_sessions']})"
    )
    of_games.add_argument(
        "--session-timeout",
        type=float,
        metavar="S",
        help=f"seconds after which a client that says nothing has left ({OF_GAMES['session_timeout']:g})",
    )
    of_games.add_argument(
        "--call-limit",
        type=float,
        metavar="S",
        help=f"seconds that a game may take for a step of it ({CALL_LIMIT_S:g})",
    )
    of_games.add_argument(
        "--tasks", type=whole(), metavar="N", help=f"levels that a split is said to have ({OF_GAMES['tasks']})"
    )
    of_policies.add_argument(
        "--at-once",
        type=whole(),
        metavar="N",
        help=f"requests that a policy replies to at once ({OF_POLICIES['at_once']})",
    )
    of_policies.add_argument("--trust-checkpoint", action="store_true", default=None, help=TRUST_HELP)
    add_player_options(of_policies)
    parser.add_argument(
        "server_options",
        nargs="*",
        metavar="-- OPTION",
        help="options of vLLM's own server, which serves the policy: -- --max-num-seqs 64",
    )
    parser.set_defaults(run=run, seed=0)
    return parser


def run(args: argparse.Namespace) -> int:
    _fill_in(args)
    if args.server_options and args.policy is None:
        raise ConfigError("--", f"options after it ({args.server_options[0]}, ...) go with --policy")
    token = _token(args)
    for flag, seconds in (("--session-timeout", args.session_timeout), ("--call-limit", args.call_limit)):
        if not 0 < seconds <= 86_400:
            raise ConfigError(flag, f"must be above 0 and at most 86400 (a day), got {seconds:g}")
    check_free(args.host, args.port)
    if args.policy is not None:
        return _run_policy(args, token)
    entries, env_config = listed(args.games), parse_env_config(args.env_config)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(args, named_games(entries, env_config), token))
    return 0


async def _serve(args: argparse.Namespace, games: Any, token: str | None) -> None:
    from rllib_lmgame.servers.agentgym import agentgym_app
    from rllib_lmgame.servers.hall import Hall, open_games
    from rllib_lmgame.servers.mrlm import serve_mrlm
    from rllib_lmgame.servers.openenv import openenv_app

    served = await open_games(games, args.seats, args.tasks)
    hall = Hall(served, args.max_sessions, args.session_timeout, args.call_limit)
    began = False

    def ready(port: int) -> None:
        nonlocal began
        began = True
        host = in_address(args.host)
        if args.protocol == "mrlm":
            said = f", authorization: Bearer {token}" if token is not None and args.token_file is None else ""
            print(f"{', '.join(served)} at {host}:{port}{said}", flush=True)
            return
        made = "" if token is None or args.token_file is not None else f"token:{token}@"
        for name in served:
            print(f"{name} at http://{made}{host}:{port}" + f"/{name}" * (len(served) > 1), flush=True)

    try:
        if args.protocol == "mrlm":
            await serve_mrlm(hall, token, args.host, args.port, ready)
        else:
            app = openenv_app(hall, token) if args.protocol == "openenv" else agentgym_app(hall, token)
            await listen(app, args.host, args.port, ready, STOP_S, cancels=True)
    finally:
        hall.sessions.close()
        if began:
            print(f"stopped; {hall.begun:,} games were begun", file=sys.stderr)


def _run_policy(args: argparse.Namespace, token: str | None) -> int:
    from rllib_lmgame.evaluation.players.language_model import LocalModel
    from rllib_lmgame.evaluation.players.naming import make_player

    settings = replace(player_settings(args, (), at_once=args.at_once), flag="--policy")
    player = make_player(args.policy, args.policy, settings)
    if not isinstance(player, LocalModel):
        raise ConfigError(
            "--policy", f"{args.policy} is no language model of this machine; name a checkpoint or hf:DIR"
        )
    from rllib_lmgame.evaluation.players.vllm_server import run_server, server_command

    port = check_free(args.host, args.port)
    command, environment = server_command(player, args.policy, args.host, port, args.at_once, token)
    made = f", api_key {token}" if token is not None and args.token_file is None else ""
    place = f"{args.policy} at http://{in_address(args.host)}:{port}/v1{made}"
    return run_server([*command, *args.server_options], environment, args.host, port, place)


def _fill_in(args: argparse.Namespace) -> None:
    """Set the flags that were left out. Raises: ConfigError: one that was given is not of what is served."""
    for served, of, flags in ((args.games, "--games", OF_GAMES), (args.policy, "--policy", OF_POLICIES)):
        for name, default in flags.items():
            if getattr(args, name) is None:
                setattr(args, name, default)
            elif served is None:
                raise ConfigError(f"--{name.replace('_', '-')}", f"goes with {of}")


def _token(args: argparse.Namespace) -> str | None:
    """What clients have to know. Raises: ConfigError: a file without it, or others could play without one."""
    if args.no_token:
        if not is_loopback(args.host):
            raise ConfigError("--no-token", f"would let everybody in who reaches {args.host}; leave it out")
        return None
    if args.token_file is None:
        return secrets.token_urlsafe(24)
    try:
        with Path(args.token_file).expanduser().open(encoding="utf-8") as file:
            token = file.read(LONGEST_TOKEN + 1).partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--token-file", f"cannot be read: {error}") from None
    if not 8 <= len(token) <= LONGEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("--token-file", "its first line must be 8 to 4096 printable characters of ASCII, no spaces")
    return token
