"""Servers that games of a run are played on, and models on the hub: asked before Ray starts and by ``--dry-run``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from rllib_lmgame.algorithms.admission import check_on_hub, check_teacher
from rllib_lmgame.algorithms.games import found_beside, needs_others
from rllib_lmgame.algorithms.games_fit import games_of
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.registry import is_program
from rllib_lmgame.envs.support.asked_models import Policies, policies_of_run
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.settings.sections.games import GameConfig
from rllib_lmgame.settings.trust import is_number


def check_servers(experiments: Iterable[CheckedExperiment], *, needed: bool) -> None:
    """Ask each server whether it is there, and note it in the experiment.

    Raises: ConfigError: if a server is ``needed`` and not there (the message says how it is started), or an agent
        program cannot be called.
    """
    for experiment in experiments:
        asked: dict[str, ConfigError | str] = {}
        with experiment.spec.source.attached():
            _find_models(experiment, needed=needed)
            for place, game, policies in _on_servers(experiment):
                options = game.env_config
                texts = {name: value for name, value in options.items() if not is_number(value)}
                server = f"{game.env} {json.dumps(texts, sort_keys=True, default=str)} {policies.names}"
                if server not in asked:
                    asked[server] = _found(game, policies)
                found = asked[server]
                if isinstance(found, ConfigError):
                    message = found.message if game.env in found.message else f"{game.env}: {found.message}"
                    if needed or is_program(game.env):  # A server may be started later; a program is there or not.
                        raise ConfigError(f"{place}{found.path}", message) from None
                    experiment.missing[game.key] = message
                elif found:
                    experiment.servers.append(f"{game.env} {found}")


def _find_models(experiment: CheckedExperiment, *, needed: bool) -> None:
    """Else a teacher that is not there would be missed at the first update behind a warm start."""
    for config in experiment.configs if experiment.algorithm.own else ():
        if needed:
            check_on_hub(config)
        try:
            check_teacher(config, {}, fetch=True)
        except ConfigError as error:
            if needed:
                raise
            experiment.missing[error.path] = str(error)


def dry_run_servers(experiment: CheckedExperiment) -> list[str]:
    """Lines of the dry run, which goes on where a server is missing."""
    missing = dict.fromkeys(experiment.missing.values())
    lines = [*dict.fromkeys(experiment.servers), *(f"warning: {what}" for what in missing)]
    return ["# servers", *(f"#   {line}" for line in lines)] if lines else []


def _on_servers(experiment: CheckedExperiment) -> Iterator[tuple[str, GameConfig, Policies]]:
    """Games that need a server, where they stand (with a dot at the end), and the policies that they may ask."""
    for config in experiment.configs if experiment.algorithm.own else ():
        policies = Policies(tuple(config.language_model_policies()))
        for place, game in games_of(config):
            if needs_others(game):
                yield f"config.{place}", game, policies


def _found(game: GameConfig, policies: Policies) -> ConfigError | str:
    """What the game's server is, or that it is not there."""
    try:
        with policies_of_run(policies):
            return found_beside(game)
    except ConfigError as error:
        return error
