"""``rllib serve``: games for other programs, or a policy as OpenAI's clients ask models."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import check_free, in_address, is_loopback, listen
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.cli import options
from rllib_lmgame.cli.game_list import FORM, listed, named_games
from rllib_lmgame.cli.options import HOST, PORT, OneOf, Option, Section, env_config, env_config_of, seconds, whole
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, player_settings

STOP_S = 5.0
LONGEST_TOKEN = 4096


@options.command(
    "Serve games until Ctrl-C. Programs play them by the protocol of OpenEnv, at http://HOST:PORT/NAME, or at "
    "http://HOST:PORT if it is one game. Or serve a policy to OpenAI's clients, at http://HOST:PORT/v1.",
    OneOf(
        Option("--games GAMES...", f"joined by commas, each {FORM}"),
        Option("--policy CHECKPOINT", "a checkpoint, DIR:POLICY or DIR:MEMBER, or hf:DIR_OR_ID"),
        required=True,
    ),
    HOST,
    PORT,
    OneOf(
        Option("--token-file FILE", "its first line is the token of clients (default: a new one, which is printed)"),
        Option("--no-token", "serve every program of this machine"),
    ),
    Section(
        "with --games",
        env_config("all games"),
        Option(
            "--seats PLAYER...",
            "who sits where, in the order of the seats, if a client does not say it: remote (the client), or a "
            "scripted player (default: the client takes all)",
        ),
        Option("--max-sessions N", "clients at once", whole(), 256),
        Option("--session-timeout S", "seconds after which a client that says nothing has left", seconds, 600.0),
        Option("--call-limit S", "seconds that a game may take for one of its steps", seconds, CALL_LIMIT_S),
    ),
    Section(
        "with --policy",
        Option("--at-once N", "requests that a policy replies to at once", whole(), 16),
        *PLAYER_OPTIONS,
        Option(
            "[-- OPTION...]",
            "options of vLLM's own server, which serves the policy: -- --max-num-seqs 64",
            dest="server_options",
        ),
    ),
)
def command(args: argparse.Namespace) -> int:
    token = _token(args)
    check_free(args.host, args.port)
    if args.policy is not None:
        return _run_policy(args, token)
    games = named_games(listed(args.games), env_config_of(args))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(args, games, token))
    return 0


async def _serve(args: argparse.Namespace, games: Any, token: str | None) -> None:
    from rllib_lmgame.servers.openenv import openenv_app
    from rllib_lmgame.servers.sessions import SessionPool, open_games

    served = await open_games(games, args.seats)
    pool = SessionPool(served, args.max_sessions, args.session_timeout, args.call_limit)
    began = False

    def ready(port: int) -> None:
        nonlocal began
        began = True
        made = "" if token is None or args.token_file is not None else f"token:{token}@"
        for name in served:
            at = f"http://{made}{in_address(args.host)}:{port}"
            print(f"{name} at {at}" + f"/{name}" * (len(served) > 1), flush=True)

    try:
        await listen(openenv_app(pool, token), args.host, args.port, ready, STOP_S, cancels=True)
    finally:
        pool.sessions.close()
        if began:
            print(f"stopped; {pool.begun:,} games were begun", file=sys.stderr)


def _run_policy(args: argparse.Namespace, token: str | None) -> int:
    from rllib_lmgame.evaluation.players.language_model import LocalModel
    from rllib_lmgame.evaluation.players.naming import make_player
    from rllib_lmgame.evaluation.players.vllm_server import run_server, server_command

    player = make_player(args.policy, args.policy, player_settings(args, (), args.at_once, "--policy"))
    if not isinstance(player, LocalModel):
        why = f"{args.policy} is no language model of this machine; name a checkpoint or hf:DIR_OR_ID"
        raise ConfigError("--policy", why)
    if prefill := player.options.language_model.reply_prefill:
        hint = "send this beginning as the last message, with add_generation_prompt false, continue_final_message true"
        print(f"note: in training every reply began with {prefill!r}: {hint}", file=sys.stderr)
    port = check_free(args.host, args.port)
    command, environment = server_command(player, args.policy, args.host, port, args.at_once, token)
    made = f", api_key {token}" if token is not None and args.token_file is None else ""
    place = f"{args.policy} at http://{in_address(args.host)}:{port}/v1{made}"
    return run_server([*command, *args.server_options], environment, args.host, port, place)


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
