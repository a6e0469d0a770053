"""Servers that games of a run are played on: asked before Ray starts, and by ``--dry-run``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from rllib_lmgame.envs.registry import game_spec, load_factory, make_game
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.settings.sections.games import GameConfig

READY = "check_ready"
"""Method of games that need something which runs beside them."""


def check_servers(experiments: Iterable[CheckedExperiment], *, needed: bool) -> None:
    """Ask each server whether it is there, and note it in the experiment.

    Raises: ConfigError: if a server is ``needed`` and not there; the message says how it is started.
    """
    for experiment in experiments:
        asked: dict[str, ConfigError | str] = {}
        with experiment.spec.source.attached():
            for place, game in _on_servers(experiment):
                server = f"{game.env} {game.env_config.get('url')}"
                if server not in asked:
                    asked[server] = _found(game)
                found = asked[server]
                if isinstance(found, ConfigError):
                    if needed:
                        raise ConfigError(f"{place}.{found.path}", f"{game.env}: {found.message}") from None
                    experiment.missing[game.key] = f"{game.env}: {found.message}"
                else:
                    experiment.servers.setdefault(server, f"{game.env} {found}")


def dry_run_servers(experiment: CheckedExperiment) -> list[str]:
    """Lines of the dry run, which goes on where a server is missing."""
    missing = dict.fromkeys(experiment.missing.values())
    lines = [*experiment.servers.values(), *(f"warning: {what}" for what in missing)]
    return ["# servers", *(f"#   {line}" for line in lines)] if lines else []


def _on_servers(experiment: CheckedExperiment) -> Iterator[tuple[str, GameConfig]]:
    """Games that need a server, and where they stand."""
    for config in experiment.configs if experiment.algorithm.own else ():
        games = [("config", game) for game in config.training_games()]
        games += [("config.evaluation_config", game) for game in config.evaluation_options.games or ()]
        for place, game in games:
            if hasattr(load_factory(game_spec(game.env)), READY):
                yield place, game


def _found(game: GameConfig) -> ConfigError | str:
    try:
        with closing(make_game(game.env, game.env_config)) as made:
            return str(getattr(made, READY)())
    except ConfigError as error:
        return error
