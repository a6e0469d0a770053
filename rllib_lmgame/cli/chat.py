"""``rllib chat``: one's own prompts to a policy."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import printable
from rllib_lmgame.cli.games import TRUST_HELP
from rllib_lmgame.cli.player_options import add_player_options, player_settings, seed, whole

HELP = "Type a prompt; `/new` begins another conversation, an empty line or Ctrl-D leaves."


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "chat",
        help=summary,
        description="Talk with a language model. On a terminal each line is a prompt, and the conversation goes on. "
        "Input from a pipe or a file is one prompt, and the reply alone is printed.",
        epilog="examples:\n  rllib chat runs/NAME\n  echo 'What is 2 + 2?' | rllib chat hf:DIR --temperature 0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("player", metavar="CHECKPOINT", help="a checkpoint, DIR:POLICY or DIR:MEMBER, or hf:DIR_OR_ID")
    parser.add_argument("--system", metavar="TEXT", default="", help="system message (default: none)")
    parser.add_argument(
        "--as-trained",
        action="store_true",
        help="ask as in training: system prompt, format, prefill and notes of the checkpoint",
    )
    parser.add_argument("--max-tokens", type=whole(), metavar="N", help="longest reply (default: that of training)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the replies (default 0)")
    parser.add_argument("--trust-checkpoint", action="store_true", help=TRUST_HELP)
    add_player_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rllib_lmgame.evaluation.players.language_model import LocalModel
    from rllib_lmgame.evaluation.players.naming import make_player

    if args.as_trained and args.system:
        raise ConfigError("--system", "does not go with --as-trained: the system message is then that of training")
    player = make_player(args.player, args.player, replace(player_settings(args, (), at_once=1), flag="CHECKPOINT"))
    if not isinstance(player, LocalModel):
        raise ConfigError("", f"{args.player} is no language model of this machine; name a checkpoint or hf:DIR_OR_ID")
    return asyncio.run(_talk(player, args))


async def _talk(player: Any, args: argparse.Namespace) -> int:
    from rllib_lmgame.evaluation.players.talk import Talk

    talk = Talk(player, args.system, as_trained=args.as_trained, max_tokens=args.max_tokens)
    if not sys.stdin.isatty():
        text = sys.stdin.read().strip()
        if not text:
            raise ConfigError("", "there is no prompt on standard input")
        async with player:
            print(printable(await talk.say(text)))
        return 0
    async with player:
        print(HELP)
        while text := _typed():
            if text == "/new":
                talk.restart()
                continue
            before = talk.turns
            try:
                said = await talk.say(text)
            except ConfigError as error:
                print(f"error: {error}", file=sys.stderr)
                continue
            if talk.turns <= before:
                print("(the context was full: the conversation begins anew)")
            print(printable(said))
    return 0


def _typed() -> str:
    """A typed line; empty at the end."""
    try:
        return input("you> ").strip()
    except EOFError:
        print()
        return ""
