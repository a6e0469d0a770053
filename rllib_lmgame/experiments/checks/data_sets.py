"""Published data sets that a run's games name: a dry run goes on without them, and what is made up is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.data_sets.places import DataMissing, is_named, level_files
from rllib_lmgame.envs.contract.splits import TRAIN
from rllib_lmgame.envs.registry import made_up_levels
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.experiments.spec import ExperimentSpec

ENV_CONFIG, GAMES, EVALUATION = "env_config", "games", "evaluation_config"

GOES_WITH = {"data": ("retriever",)}
"""Options that are refused without what a key names."""


def stand_in_for_missing(specs: Iterable[ExperimentSpec]) -> None:
    """Let games whose data sets are not here play made-up levels, with a notice of the command that brings them.

    For a dry run, which is about everything else. The run itself is refused without them.
    """
    for spec in specs:
        missing = dict(_taken_out("config", spec.config))
        for said in dict.fromkeys(missing.values()):
            keys = ", ".join(key for key, each in missing.items() if each == said)
            spec.notices.append(f"{keys}: {said}; this dry run goes on without it")


def _taken_out(place: str, settings: Any) -> Iterator[tuple[str, str]]:
    """Keys of games' options that named a data set which is not here, and why; they are gone then."""
    if not isinstance(settings, Mapping):
        return
    options = settings.get(ENV_CONFIG)
    options = options if isinstance(options, dict) else {}
    for key, value in list(options.items()):
        if is_named(value):
            try:
                level_files(value, str(options.get("split", TRAIN)), f"{place}.{ENV_CONFIG}.{key}")
            except DataMissing as error:
                yield error.path, error.message
                for gone in (key, *GOES_WITH.get(key, ())):
                    options.pop(gone, None)
            except ConfigError:  # The game itself says what is wrong.
                continue
    for number, game in enumerate(settings.get(GAMES) or ()):
        yield from _taken_out(f"{place}.{GAMES}[{number}]", game)
    yield from _taken_out(f"{place}.{EVALUATION}", settings.get(EVALUATION))


def look_alike_lines(experiment: CheckedExperiment) -> list[str]:
    """Lines of the dry run about games whose levels are made up after published ones."""
    if not experiment.algorithm.own:
        return []
    config = experiment.configs[0]
    lines = made_up_levels([*config.training_games(), *config.games_for_evaluation()])
    return ["# made-up levels", *(f"#   {line}" for line in lines)] if lines else []
