"""``rllib completion``: a script by which a shell completes commands, flags and their choices, examples and games."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

GAME_FLAGS = ("--env", "--games", "--game")
"""They take ids of games."""

_SCRIPT = """# bash: eval "$(rllib completion)"; zsh: autoload -U +X bashcompinit && bashcompinit first.
_rllib() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" known=""
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}
  esac
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then known="{commands} --help --version --debug"; fi
  COMPREPLY=($(compgen -W "$known" -- "$word"))
  if [ "${{#COMPREPLY[@]}}" -eq 0 ]; then COMPREPLY=($(compgen -f -- "$word")); fi
}}
complete -o filenames -F _rllib rllib
"""


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "completion",
        help=summary,
        description='Print a script for bash or zsh. Put `eval "$(rllib completion)"` into ~/.bashrc; zsh needs '
        "`autoload -U +X bashcompinit && bashcompinit` before it.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    print(script(), end="")
    return 0


def script() -> str:
    """The script. Words hold no quotes and no spaces: names of this package, and flags."""
    from rllib_lmgame.cli.main import COMMANDS, make_parser

    cases, values = [], []
    for command in COMMANDS:
        parser = _commands(make_parser(command))[command]
        inner = _commands(parser)
        for each in (parser, *inner.values()):
            for flag, words in _values(each):
                values.append(f'    "{command} {flag}") known="{" ".join(words)}" ;;')
        for name, below in inner.items():
            cases.append(f'    "{command} {name}") known="{" ".join(_words(command, name, below))}" ;;')
        cases.append(f'    "{command} "*) known="{" ".join([*inner, *_words(command, "", parser)])}" ;;')
    return _SCRIPT.format(cases="\n".join(cases), values="\n".join(values), commands=" ".join(COMMANDS))


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def _values(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Flags with the words that may follow them, where these are known."""
    from rllib_lmgame.envs.registry import own_games

    for action in parser._actions:
        words = list(map(str, action.choices or ())) if action.help != argparse.SUPPRESS else []
        for flag in action.option_strings:
            if known := list(own_games()) if flag in GAME_FLAGS else words:
                yield flag, known


def _words(command: str, name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Flags that are told of, and what may stand where the command takes a name."""
    from rllib_lmgame.cli.example import examples
    from rllib_lmgame.data_sets.table import SETS
    from rllib_lmgame.envs.registry import own_games

    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            yield from (flag for flag in action.option_strings if flag.startswith("--"))
    if (command, name) in (("example", "get"), ("example", "run")) or command == "info":
        yield from examples()
    if command in ("info", "play", "collect", "tournament") or (command, name) == ("games", "check"):
        yield from own_games()
    if command == "data" and name != "list":
        yield from SETS
