"""``rllib init``: the first files of your own game."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import os
import re
import sys
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Actions, Option
from rllib_lmgame.experiments.files import scaffolds


@options.command(
    "a game with its test and a file to train on it",
    Option("NAME", "of its module: my_game makes my_game.py with the class MyGame"),
    Option("--dir DIR", "where the files go (default: here)", default="", dest="directory"),
)
def init_game(args: argparse.Namespace) -> int:
    from rllib_lmgame.base.storage import expanded

    directory = expanded(args.directory or ".")
    _check_module(args.name, directory)
    files, game = game_files(args.name)
    there = [str(directory / name) for name in files if os.path.lexists(directory / name)]
    if there:
        raise ConfigError("", f"{', '.join(there)} exists; choose another name, or another --dir")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("", f"{directory} cannot be written: {error.strerror or error}") from None
    for name in files:
        print(directory / name)
    where = [] if directory == Path() else [f"cd {args.directory}"]
    again = [f"rllib games check {game}", f"python -m pytest test_{args.name}.py", f"rllib play {game}"]
    print("", *where, *again, f"rllib train file {args.name}.yaml --dry-run", sep="\n")
    return 0


def _check_module(name: str, directory: Path) -> None:
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError("NAME", f"{name!r} names no module of Python; write it like my_game")
    if (directory / f"{name}.py").exists():
        return  # It is told of with the others.
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        raise ConfigError("NAME", f"there is a module {name!r} already; choose another name")


def game_files(module: str) -> tuple[dict[str, str], str]:
    """Name -> text of the files of a game, begun with GuessNumber, and what the game is called in commands."""
    title = "".join(part.capitalize() for part in module.split("_")) or "Game"
    folder = Path(scaffolds.__file__).parent
    _, _, code = (folder / "guess_number.py").read_text(encoding="utf-8").partition("\n")
    test = (folder / "test_of_game.py").read_text(encoding="utf-8")
    head = f'"""{title}: begun with `rllib init game`; its rules, levels and moves are to be changed."""\n'
    game = f"{module}:{title}"
    imported = re.findall(r"\w+", " ".join(re.findall(r"^from \S+ import (.+)$", code, re.MULTILINE)))
    if title in imported or keyword.iskeyword(title):
        raise ConfigError("NAME", f"its class would be {title}, which is something else; choose another name")

    def renamed(text: str) -> str:
        text = text.replace(f"{scaffolds.__name__}.guess_number", module)
        return text.replace("GuessNumber", title).replace("guess_number", module)

    texts = {f"{module}.py": renamed(head + code), f"test_{module}.py": renamed(test)}
    return {**texts, f"{module}.yaml": config_text(module, game)}, game


def config_text(name: str, game: str) -> str:
    """A file that trains a tiny model on a game: what an author changes first, with what it is."""
    engine = "vllm" if importlib.util.find_spec("vllm") else "transformers"
    return f"""# A tiny language model learns {game}, at first from a player who knows it.
#   rllib train file {name}.yaml
{name}:
  run: LMGamePPO
  env: "{game}"
  stop: {{rl_iteration: 20}}
  checkpoint_config: {{checkpoint_frequency: 10, num_to_keep: 2}}
  config:
    seed: 0
    env_config: {{}}                  # options of the game: rllib info {game}
    language_model:
      model: tiny                   # or the directory or hub id of a model
      max_tokens_per_turn: 16
      context_length: 512
    inference: {{engine: {engine}}}
    text_rollouts:
      episodes_per_iteration: 128
    warm_start: {{expert: solver, max_steps: 200}}
    num_env_runners: 0              # games are played in the trial's own process
    num_envs_per_env_runner: 128    # so many at once
    lr: 3.0e-4
    evaluation_interval: 10
    evaluation_duration: 64
"""


command = Actions("Write the first files of something of your own.", {"game": init_game})
