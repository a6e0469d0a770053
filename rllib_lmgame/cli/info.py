"""``rllib info``: about a game."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import suppress

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.text import columns, one_line, printable
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import GAME


@options.command("Describe a game: its rules, its options and a turn.", GAME)
def command(args: argparse.Namespace) -> int:
    for line in about_game(args.game):
        print(printable(line), flush=True)
    return 0


def about_game(game: str) -> Iterator[str]:
    """Print a game's description, its options and an example turn."""
    from rllib_lmgame.base.group import REQUIRED, declared, type_name
    from rllib_lmgame.base.plugin import find_in_current_directory
    from rllib_lmgame.base.step_timer import WaitedTooLong
    from rllib_lmgame.envs.checking.sample import as_played, docstring_text, example_turn
    from rllib_lmgame.envs.contract.base import GameError
    from rllib_lmgame.envs.registry import game_spec, load_factory

    find_in_current_directory(game)
    spec = game_spec(game)
    yield f"{spec.game_id}: {spec.summary}" if spec.summary else spec.game_id
    factory = load_factory(spec)
    if not spec.own:
        with suppress(ConfigError, MissingDependencyError, GameError, WaitedTooLong):  # The turn below says why.
            spec = as_played(spec)
    players, replies, reach, solver, extra, _ = spec.cells()
    facts = {
        "players": f"{players} ({', '.join(spec.roles)})",
        "replies": replies,
        "return": reach,
        "expert": solver or "no",
        "needs": f"pip install 'rllib-lmgame[{extra}]'" if extra else "",
        "play it": f"rllib play {spec.game_id}",
    }
    yield from columns([(f"  {name}", one_line(text)) for name, text in facts.items() if text], left=2)
    yield from ("", docstring_text(factory))
    if (group := getattr(factory, "Options", None)) is not None:
        yield from ("", "options (env_config)")
        rows = [("  key", "default", "type", "")]
        for key, each in declared(group).items():
            default = spec.defaults.get(key, each.default)
            text = "must be given" if default is REQUIRED else json.dumps(default, ensure_ascii=False, default=str)
            shown = text if len(text) <= 100 else f"{text[:60]} ..."
            rows.append((f"  {key}", shown, type_name(each.hint), each.says.get("doc", "")))
        yield from columns(rows, left=4)
    try:
        turn = example_turn(spec)
    except (ConfigError, MissingDependencyError, GameError, WaitedTooLong) as error:
        turn = f"none can be shown here: {error}"
    yield from ("", "a turn", turn)
