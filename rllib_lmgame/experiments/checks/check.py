"""Checks of an experiment before Ray starts.

First what needs no heavy import (names, types, option groups, model directories). Then the algorithm's configuration is
built and validated for every point of a grid and for samples of a random search space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import CheckpointError, ConfigError, MissingDependencyError, nearest
from rllib_lmgame.base.group import unknown_key
from rllib_lmgame.base.storage import expanded, is_uri
from rllib_lmgame.config.algorithms import ANY, OWN, AlgorithmEntry
from rllib_lmgame.config.run import read
from rllib_lmgame.experiments.checks.algorithms import ResolvedAlgorithm, check_callbacks, resolve_algorithm
from rllib_lmgame.experiments.search.schedulers import check_scheduler, make_searcher, split_scheduler
from rllib_lmgame.experiments.search.spaces import (
    MUTATIONS,
    SEARCH_KEYS,
    check_search_space,
    find_search_spaces,
    grid_size,
    mutated_key,
    mutated_points,
    sample_points,
    to_tune,
)
from rllib_lmgame.experiments.spec import ExperimentSpec
from rllib_lmgame.experiments.stock import check_stock_config
from rllib_lmgame.policies.options import TINY_MODEL, LanguageModelOptions
from rllib_lmgame.telemetry.metrics import OF_TUNE, RESULT_HEADS


@dataclass
class CheckedExperiment:
    """An experiment that can run. ``configs`` are validated: the whole grid, or samples of a random space."""

    spec: ExperimentSpec
    algorithm: ResolvedAlgorithm
    configs: list[Any]
    num_trials: int
    servers: list[str] = field(default_factory=list)
    """What was found of the servers that games are played on."""
    missing: dict[str, str] = field(default_factory=dict)
    """Keys of games whose server is not there, and how it is started."""


def check_experiments(specs: Iterable[ExperimentSpec]) -> list[CheckedExperiment]:
    """Check all that :func:`check_quickly` leaves. Raises: ConfigError: with the file and line of the wrong value."""
    checked = []
    for spec in specs:
        try:
            with spec.source.attached():
                checked.append(_check(spec))
        except MissingDependencyError as error:
            raise MissingDependencyError(f"{spec.source.locate('config')}: {error}") from None
    return checked


def check_quickly(specs: Iterable[ExperimentSpec], *, trust: bool = False) -> None:
    """The checks that need no torch, and Ray in few cases; ``trust``: unpickle checkpoints to start from.
    Raises: ConfigError: all that is wrong, with files and lines.
    """
    found = (spec.source.attach(error) for spec in specs for error in _wrong_in(spec, trust))
    if wrong := {str(error): error for error in found}:
        raise ConfigError.together(wrong.values())


def _wrong_in(spec: ExperimentSpec, trust: bool) -> Iterator[ConfigError]:
    yield from spec.wrong
    run, entry = spec.options.run, OWN.get(spec.options.run)
    meant = ANY if str(spec.config.get("env") or "lmgame/").startswith("lmgame/") else None  # Else one of RLlib's.
    if not run:
        entry = meant
    elif meant and entry is None and ":" not in run:
        try:
            resolve_algorithm(run)
        except ConfigError as error:
            entry = ANY if any(own in error.message for own in OWN) else None  # Else one of RLlib's is meant.
            yield error
    checks: list[Callable[[], None]] = [lambda: _check_config(spec, entry), lambda: _check_restore(spec, trust)]
    for check in ([lambda: _check_stop(spec, entry)] if entry else []) + checks:
        try:
            check()
        except ConfigError as error:
            yield error
    rows = json.loads((Path(__file__).parents[2] / "envs" / "index.json").read_bytes()) if entry else ()
    yield from _unknown_in_games(spec.config, {row["game_id"]: row["options"] for row in rows}, "config")


def _check(spec: ExperimentSpec) -> CheckedExperiment:
    from rllib_lmgame.experiments.results.outcome import load_report

    num_trials = grid_size(spec.config) * spec.options.num_samples
    kept = spec.options.checkpoint_config
    check_scheduler(spec.options.scheduler, kept)
    make_searcher(spec)
    to_tune(spec.config)
    check_callbacks(spec.options.callbacks)
    if spec.options.report is not None:
        load_report(spec.options.report)
    algorithm = resolve_algorithm(spec.options.run)
    if kept.asynchronous and not algorithm.own:
        own = f"{algorithm.name} writes its own checkpoints; leave it out"
        raise ConfigError("checkpoint_config.asynchronous", own)
    if kept.asynchronous and not kept.checkpoint_at_end:
        say = "must be true with asynchronous: Tune would not learn of a checkpoint that is written when the trial ends"
        raise ConfigError("checkpoint_config.checkpoint_at_end", say)
    _check_stop(spec, algorithm.entry)
    configs = [build_config(algorithm, point) for point in sample_points(spec.config)]
    _check_mutations(spec, algorithm)
    if algorithm.own:
        servers = {config.run.inference.engine.url for config in configs if config.run.inference.engine.outside}
        at_once = spec.options.search.max_concurrent_trials if spec.options.search.type else None
        if servers and len(servers) < num_trials and at_once != 1:
            raise ConfigError("config.inference.engine.url", f"a server has the weights of one trial, not {num_trials}")
        for config in configs:
            _check_evaluated(spec, config)
    return CheckedExperiment(spec, algorithm, configs, num_trials)


def _check_mutations(spec: ExperimentSpec, algorithm: ResolvedAlgorithm) -> None:
    mutations = split_scheduler(spec.options.scheduler)[1].get(MUTATIONS)
    if mutations is None:
        return
    try:
        for point in mutated_points(spec.config, mutations):
            build_config(algorithm, point)
    except ConfigError as error:
        raise ConfigError(mutated_key(error.path, mutations), error.message, error.source) from error.__cause__


def _check_evaluated(spec: ExperimentSpec, config: Any) -> None:
    stage = config.run.supervised_stage
    measured = ("evaluation/env_runners/",) if stage is not None and stage.stop_at is not None else ()
    for key, name in named_metrics(spec).items() if not config.evaluation_interval else ():
        if name.startswith("evaluation/") and not name.startswith(measured):
            raise ConfigError(key, f"{name} is never measured: set config.evaluation_interval")


def named_metrics(spec: ExperimentSpec) -> dict[str, str]:
    """Key -> the metric that it names."""
    metric = split_scheduler(spec.options.scheduler)[1].get("metric")
    named = {f"stop.{metric}": metric for metric in spec.options.stop} | {
        "scheduler.metric": metric,
        "checkpoint_config.checkpoint_score_attribute": spec.options.checkpoint_config.checkpoint_score_attribute,
        "config.evaluation_config.best": (spec.config.get("evaluation_config") or {}).get("best"),
    }
    return {key: name for key, name in named.items() if isinstance(name, str)}


def build_config(algorithm: ResolvedAlgorithm, values: Mapping[str, Any]) -> Any:
    """The algorithm's validated configuration for one point. Raises: ConfigError: keys start with ``config.``."""
    from rllib_lmgame.envs.contract.base import GameError
    from rllib_lmgame.experiments.checks.datasets import check_dataset

    try:
        config = algorithm.cls.get_default_config().copy(copy_frozen=False)
        if not algorithm.own:
            check_stock_config(config, values)
        config.update_from_dict(dict(values))
        config.validate()
        if algorithm.own:
            from rllib_lmgame.algorithms.games import check_games_can_be_made

            check_games_can_be_made(config)
            check_dataset(config)
    except ConfigError as error:
        path = error.path if error.path.startswith("config.") else f"config.{error.path}".rstrip(".")
        raise ConfigError(path, error.message, error.source) from None
    except MissingDependencyError:
        raise
    except GameError as error:
        raise ConfigError("config.games" if "games" in values else "config.env", str(error)) from error
    except (ValueError, TypeError, AttributeError, KeyError, AssertionError, ImportError) as error:
        text = str(error).strip().split("\n\n")[0].replace("\n", " ")
        told = text if not isinstance(error, KeyError | AttributeError) and text else f"{type(error).__name__}: {text}"
        found = [key for key in values if len(key) > 2 and re.search(rf"[`']{key}[`']|\b{key}[= ]", str(error))]
        raise ConfigError(f"config.{max(found, key=len)}" if found else "config", told) from error
    return config


def _check_config(spec: ExperimentSpec, entry: AlgorithmEntry | None) -> None:
    for node in find_search_spaces(spec.config):
        check_search_space(node)
    if entry is None:
        return
    for point in sample_points(spec.config):
        s = read(point, entry)
        _check_model(s.language_model, point.get("language_model") or {}, "config.language_model")
        for name, player in s.policies.items():
            _check_model(s.model_of(name), player.language_model, f"config.policies.{name}.language_model")


def _unknown_in_games(config: Any, known: Mapping[str, Sequence[str]], place: str) -> Iterator[ConfigError]:
    """Keys that this package's games do not have, in ``env_config`` of training and of evaluation."""
    if not isinstance(config, Mapping):
        return
    own, game, games = config.get("env_config"), known.get(str(config.get("env"))), config.get("games")
    if game is not None and isinstance(own, Mapping) and not own.keys() & SEARCH_KEYS:
        yield from (unknown_key(key, game, f"{place}.env_config") for key in own if key not in game)
    for number, each in enumerate(games if isinstance(games, list) else ()):
        yield from _unknown_in_games(each, known, f"{place}.games[{number}]")
    yield from _unknown_in_games(config.get("evaluation_config"), known, f"{place}.evaluation_config")


def _check_model(options: LanguageModelOptions, written: Collection[str], key: str) -> None:
    """Check a model and its tokenizer; only what is written in this place is looked at."""
    if options.model == TINY_MODEL and "tiny" in written:
        from rllib_lmgame.policies.model.tiny import check_shape

        check_shape(options.tiny, f"{key}.tiny")
    if options.model != TINY_MODEL and "model" in written:
        from rllib_lmgame.policies.model.files import check_model

        check_model(options.model, f"{key}.model")
    place = options.tokenizer if "tokenizer" in written else None
    if place is not None and place.startswith((".", "/", "~")) and not expanded(place).is_dir():
        raise ConfigError(f"{key}.tokenizer", f"no such tokenizer directory: {place}")


def _check_stop(spec: ExperimentSpec, entry: AlgorithmEntry | None) -> None:
    known = (*RESULT_HEADS, *OF_TUNE, *(entry.metrics if entry else ()))
    for metric in spec.options.stop:
        head = metric.split("/")[0]
        if head not in known and (match := nearest(metric, known) or nearest(head, known)):
            right = metric.replace(head, match, 1)
            raise ConfigError(f"stop.{metric}", f"no result has this metric; did you mean {right!r}?")


def _check_restore(spec: ExperimentSpec, trust: bool) -> None:
    from rllib_lmgame.algorithms.checkpoints.paths import check_unpickling, find_checkpoint

    path = spec.options.restore
    if path is None:
        return
    if is_uri(path):
        raise ConfigError("restore", f"Tune restores from directories only; copy {path} to one that all nodes see")
    try:
        check_unpickling(find_checkpoint(path), trust)
    except CheckpointError as error:
        raise ConfigError("restore", str(error)) from None
