"""What games of a run need outside of it: servers, models on the hub, published data sets, a sandbox."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rllib_lmgame.algorithms.games import found_beside, games_of, needs_others
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.trust import is_number
from rllib_lmgame.downloads.places import DataMissing, is_named, level_files
from rllib_lmgame.envs.contract.splits import TRAIN
from rllib_lmgame.envs.registry import game_spec, is_program, load_factory, made_up_levels
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.experiments.spec import ExperimentSpec
from rllib_lmgame.rollouts.options import GameConfig
from rllib_lmgame.sandbox.limits import SandboxError
from rllib_lmgame.sandbox.programs import SandboxReport, report_sandbox


def check_servers(experiments: Iterable[CheckedExperiment], *, needed: bool) -> None:
    """Ask each server whether it is there, and note it in the experiment.

    Raises: ConfigError: if a server is ``needed`` and not there (the message says how it is started), or an agent
        program cannot be called.
    """
    from rllib_lmgame.algorithms.validation import check_on_hub, check_teacher  # It imports torch.

    for experiment in experiments:
        asked: dict[str, ConfigError | str] = {}
        with experiment.spec.source.attached():
            for config in experiment.configs if experiment.algorithm.own else ():
                if needed:
                    check_on_hub(config)
                try:  # Else a teacher that is not there would be missed at the first update behind a warm start.
                    check_teacher(config, {}, fetch=True)
                except ConfigError as error:
                    if needed:
                        raise
                    experiment.missing[error.path] = str(error)
                for place, game in games_of(config):
                    if needs_others(game):
                        _ask(experiment, f"config.{place}", game, needed, asked)


def _ask(experiment: CheckedExperiment, place: str, game: GameConfig, needed: bool, asked: dict[str, Any]) -> None:
    texts = {name: value for name, value in game.env_config.items() if not is_number(value)}
    server = f"{game.env} {json.dumps(texts, sort_keys=True, default=str)}"
    if server not in asked:
        try:
            asked[server] = found_beside(game)
        except ConfigError as error:
            asked[server] = error
    found = asked[server]
    if isinstance(found, ConfigError):
        message = found.message if game.env in found.message else f"{game.env}: {found.message}"
        if needed or is_program(game.env):  # A server may be started later; a program is there or not.
            raise ConfigError(f"{place}{found.path}", message) from None
        experiment.missing[game.key] = message
    elif found:
        experiment.servers.append(f"{game.env} {found}")


def stand_in_for_missing(specs: Iterable[ExperimentSpec]) -> None:
    """Let games whose data sets are not here play made-up levels, with a notice of the command that brings them.

    For a dry run, which is about everything else. The run itself is refused without them.
    """
    for spec in specs:
        for key, said in _taken_out("config", spec.config):
            spec.notices.append(f"{key}: {said}; this dry run goes on without it")


def _taken_out(place: str, settings: Any) -> Iterator[tuple[str, str]]:
    """Keys of games' options that named a data set which is not here, and why; they are gone then."""
    if not isinstance(settings, Mapping):
        return
    options = settings.get("env_config")
    options = options if isinstance(options, dict) else {}
    for key, value in list(options.items()):
        if is_named(value):
            try:
                level_files(value, str(options.get("split", TRAIN)), f"{place}.env_config.{key}")
            except DataMissing as error:
                yield error.path, error.message
                for gone in (key, "retriever") if key == "data" else (key,):  # It is refused without `data`.
                    options.pop(gone, None)
            except ConfigError:  # The game itself says what is wrong.
                continue
    for number, game in enumerate(settings.get("games") or ()):
        yield from _taken_out(f"{place}.games[{number}]", game)
    yield from _taken_out(f"{place}.evaluation_config", settings.get("evaluation_config"))


def sandboxed_games(experiment: CheckedExperiment) -> list[str]:
    """Games of an experiment, evaluation included, that run what players write."""
    if not experiment.algorithm.own:
        return []
    games = (
        game.env
        for config in experiment.configs
        for game in (*config.training_games(), *(config.run.evaluation_config.games or ()))
    )
    return [game for game in dict.fromkeys(games) if getattr(load_factory(game_spec(game)), "uses_sandbox", False)]


def tell_sandbox(experiments: Iterable[CheckedExperiment]) -> None:
    """Print the sandbox of this machine, if a game needs one. Raises: ConfigError: it would refuse programs."""
    games = list(dict.fromkeys(game for experiment in experiments for game in sandboxed_games(experiment)))
    if not games:
        return
    report = _sandbox_here()
    print(f"sandbox for programs: {report.text}", flush=True)
    if report.warning:
        print(f"warning: sandbox for programs: {report.warning}", file=sys.stderr, flush=True)
    if report.refused:
        raise ConfigError("config.env", f"{', '.join(games)} cannot be played: {report.warning}")


def _sandbox_here() -> SandboxReport:
    try:
        return report_sandbox()
    except SandboxError as error:
        raise ConfigError("", str(error)) from None


def dry_run_outside(experiment: CheckedExperiment) -> list[str]:
    """Lines of the dry run, which goes on where a server is missing: servers, sandbox, levels that are made up."""
    missing = dict.fromkeys(experiment.missing.values())
    parts = {"servers": [*dict.fromkeys(experiment.servers), *(f"warning: {what}" for what in missing)]}
    if games := sandboxed_games(experiment):
        report = _sandbox_here()
        title = f"sandbox for what players of {', '.join(games)} write (this machine)"
        parts[title] = [report.text, *([f"warning: {report.warning}"] if report.warning else [])]
    if experiment.algorithm.own:
        config = experiment.configs[0]
        parts["made-up levels"] = list(made_up_levels([*config.training_games(), *config.games_for_evaluation()]))
    return [line for title, lines in parts.items() if lines for line in (f"# {title}", *(f"#   {x}" for x in lines))]
