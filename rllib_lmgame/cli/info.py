"""``rllib info``: about a checkpoint or a game."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import columns, first_line, one_line, printable, size_text
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Option


@options.command(
    "Describe a checkpoint, or a directory that holds one: what plays and what was measured. Or a game: its page and a "
    "turn.",
    Option("CHECKPOINT|GAME", "what to describe", dest="name"),
)
def command(args: argparse.Namespace) -> int:
    if expanded(args.name).is_file():
        hint = f"of experiments, `rllib train file {args.name} --dry-run` says more"
        raise ConfigError("", f"{args.name} is a file; {hint}")
    for line in about_checkpoint(args.name) if expanded(args.name).is_dir() else about_game(args.name):
        print(printable(line), flush=True)
    return 0


def about_checkpoint(path: str) -> Iterator[str]:
    """Print the games, policies and measured success of a checkpoint."""
    from rllib_lmgame.algorithms.checkpoints.manifest import MILESTONES_FILE, iteration_of, verify_manifest
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
    from rllib_lmgame.algorithms.config import CONFIG_FILE, MAX_CONFIG_BYTES, RUN
    from rllib_lmgame.base.json_files import read_mapping
    from rllib_lmgame.evaluation.saved_config import read_config, saved_model
    from rllib_lmgame.experiments.results.curves import read_milestones, success_over_levels

    place = Path(find_checkpoint(path))
    yield str(place)
    if not is_own_checkpoint(str(place)):
        yield "  a checkpoint of RLlib's own algorithms: `rllib evaluate` measures it"
        return
    verify_manifest(place)
    config = read_config(place, trust=False)
    rows = {
        "algorithm": str(read_mapping(place / CONFIG_FILE, MAX_CONFIG_BYTES).get(RUN, "")),
        "iteration": str(iteration_of(place) or ""),
        "games": ", ".join(game.called(game.env) for game in config.training_games()),
    }
    for policy in config.trained_policies():
        rows[f"policy {policy}"] = _model(saved_model(place, config, policy))
    yield from _rows(rows)
    file = place / MILESTONES_FILE
    for name, verdicts in (read_milestones(file) if file.is_file() else {}).items():
        levels, low, rate, high = success_over_levels(verdicts)
        yield f"  {one_line(name)}: success {rate:.3f} ({low:.3f} - {high:.3f} over {levels} held-out levels)"
    yield f"  measure: rllib evaluate {place} --episodes 512 --split test"


def _model(directory: Path) -> str:
    """Architecture and size of a Hugging Face directory's model."""
    from rllib_lmgame.base.json_files import read_mapping

    try:
        config = read_mapping(directory / "config.json", 1 << 20)
        weights = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    except (OSError, ValueError) as error:
        return f"cannot be read: {first_line(error)}"
    kind = ", ".join(map(str, config.get("architectures") or ["unknown architecture"]))
    return f"{kind}, {size_text(weights)} of weights, in {directory.name}/"


def about_game(game: str) -> Iterator[str]:
    """Print a game's description, its options and an example turn."""
    from rllib_lmgame.base.group import declared, default_text, type_name
    from rllib_lmgame.base.plugin import find_in_current_directory
    from rllib_lmgame.envs.checking.sample import as_played, docstring_text, example_turn
    from rllib_lmgame.envs.contract.base import GameError
    from rllib_lmgame.envs.registry import game_spec, load_factory

    find_in_current_directory(game)
    spec = game_spec(game)
    yield f"{spec.game_id}: {spec.summary}" if spec.summary else spec.game_id
    factory = load_factory(spec)
    if not spec.own:
        with suppress(ConfigError, MissingDependencyError, GameError):  # The turn below says why.
            spec = as_played(spec)
    players, replies, reach, solver, extra, _ = spec.cells()
    yield from _rows(
        {
            "players": f"{players} ({', '.join(spec.roles)})",
            "replies": replies,
            "return": reach,
            "expert": solver or "no",
            "needs": f"pip install 'rllib-lmgame[{extra}]'" if extra else "",
            "play it": f"rllib play {spec.game_id}",
        }
    )
    yield from ("", docstring_text(factory))
    if (group := getattr(factory, "Options", None)) is not None:
        yield from ("", "options (env_config)")
        listed = [
            (
                f"  {key}",
                default_text(spec.defaults.get(key, each.default)),
                type_name(each.hint),
                each.says.get("doc", ""),
            )
            for key, each in declared(group).items()
        ]
        yield from columns([("  key", "default", "type", ""), *listed], left=4)
    try:
        turn = example_turn(spec)
    except (ConfigError, MissingDependencyError, GameError) as error:
        turn = f"none can be shown here: {error}"
    yield from ("", "a turn", turn)


def _rows(rows: Mapping[str, str]) -> list[str]:
    """One line per row; text of a file cannot begin a new line."""
    return columns([(f"  {name}", one_line(text)) for name, text in rows.items() if text] or [("", "")], left=2)
