"""``rllib chat``: your own prompts to a policy."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import printable
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Option, seed, whole
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, local_model

HELP = "Type a prompt; `/new` begins another conversation, an empty line or Ctrl-D leaves."


@options.command(
    "Talk with a language model. On a terminal each line is a prompt, and the conversation goes on. "
    "Input from a pipe or a file is one prompt, and only the reply is printed.",
    Option("CHECKPOINT", "a checkpoint, DIR:POLICY or DIR:MEMBER, or hf:DIR_OR_ID", dest="player"),
    Option("--system TEXT", "system message (default: none)", default=""),
    Option("--as-trained", "prompt as in training: system prompt, format, prefill and notes of the checkpoint"),
    Option("--max-tokens N", "longest reply (default: that of training)", whole()),
    seed("the replies"),
    *PLAYER_OPTIONS,
    epilog="examples:\n  rllib chat runs/NAME\n  echo 'What is 2 + 2?' | rllib chat hf:DIR --temperature 0",
)
def command(args: argparse.Namespace) -> int:
    if args.as_trained and args.system:
        raise ConfigError("--system", "does not go with --as-trained: the system message is then that of training")
    return asyncio.run(_talk(local_model(args, args.player, "CHECKPOINT", at_once=1), args))


async def _talk(player: Any, args: argparse.Namespace) -> int:
    from rllib_lmgame.evaluation.players.talk import Talk

    talk = Talk(player, args.system, as_trained=args.as_trained, max_tokens=args.max_tokens)
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    if not piped and not sys.stdin.isatty():
        raise ConfigError("", "there is no prompt on standard input")
    async with player:
        if piped:
            print(printable(await talk.say(piped)))
            return 0
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
