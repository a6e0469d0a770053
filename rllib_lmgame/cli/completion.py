"""``rllib completion``: a script by which a shell completes commands, flags and their choices, examples and games."""

from __future__ import annotations

import argparse

from rllib_lmgame.cli import options

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


@options.command(
    'Print a script for bash or zsh. Put `eval "$(rllib completion)"` into ~/.bashrc; zsh needs '
    "`autoload -U +X bashcompinit && bashcompinit` before it."
)
def command(args: argparse.Namespace) -> int:
    print(script(), end="")
    return 0


def script() -> str:
    """The script. Words hold no quotes and no spaces: names of this package, and flags."""
    from rllib_lmgame.cli.example import examples
    from rllib_lmgame.cli.main import COMMANDS, make_parser
    from rllib_lmgame.data_sets.table import SETS
    from rllib_lmgame.envs.registry import own_games

    games = [*own_games()]
    names = {
        **{name: [*examples()] for name in ("example get", "example run")},
        "info": [*examples(), *games],
        **dict.fromkeys(("play", "collect", "tournament", "games check"), games),
        **{name: [*SETS] for name in ("data fetch", "data path", "data verify")},
    }
    cases, values = [], []
    for command in COMMANDS:
        parser = _below(make_parser(command))[command]
        inner = _below(parser)
        for name, each in {**inner, "": parser}.items():
            words = [*inner] if not name else []
            for action in each._actions:
                words += [flag for flag in action.option_strings if flag.startswith("--")]
                for flag in action.option_strings:
                    if known := games if flag in GAME_FLAGS else [*map(str, action.choices or ())]:
                        values.append(f'    "{command} {flag}") known="{" ".join(known)}" ;;')
            words += names.get(f"{command} {name}".strip(), [])
            pattern = f'"{command} {name}"' if name else f'"{command} "*'
            cases.append(f'    {pattern}) known="{" ".join(words)}" ;;')
    return _SCRIPT.format(cases="\n".join(cases), values="\n".join(values), commands=" ".join(COMMANDS))


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of its commands or actions."""
    return {
        name: below
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, below in action.choices.items()
    }
