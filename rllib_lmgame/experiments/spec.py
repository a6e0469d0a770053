"""One experiment: the algorithm, its configuration, when to stop, and what to keep.

Keys are those of RLlib's experiment files (arguments of ``ray.tune.experiment.Experiment``), plus ``scheduler``,
``search``, ``callbacks`` and ``report``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.errors import ConfigError, nearest, of_each
from rllib_lmgame.base.group import REQUIRED, Group, build, option, unknown_key
from rllib_lmgame.base.registry import CALLBACKS, REPORTS
from rllib_lmgame.base.text import shown
from rllib_lmgame.config.algorithms import OWN, PPO
from rllib_lmgame.config.rllib import FLAT_KEYS
from rllib_lmgame.config.run import find_key
from rllib_lmgame.telemetry.metrics import flatten


def dotted(parts: Iterable[str | int]) -> str:
    """``("config", "lr", 0)`` as ``config.lr[0]``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


@dataclass
class Source:
    """Maps dotted keys to the place they come from (``file:line``); ``name`` is the file or other origin."""

    name: str
    places: dict[str, str] = field(default_factory=dict)

    def record(self, parts: Iterable[str | int], place: str) -> None:
        """Remember where a key was written."""
        self.places[dotted(parts)] = place

    def replace(self, path: str, place: str) -> None:
        """Remember that ``path`` and all below it is now written at ``place``."""
        for below in [key for key in self.places if key.startswith((path + ".", path + "["))]:
            del self.places[below]
        self.places[path] = place

    def locate(self, path: str) -> str | None:
        """Place of ``path``, or of the nearest key around it; ``None`` if nothing is known."""
        while path:
            if path in self.places:
                return self.places[path]
            path = parent(path)
        return self.places.get("", self.name or None)

    def scoped(self, prefix: str) -> Source:
        """The places below ``prefix``, with keys relative to it."""
        places = {"": self.places.get(prefix, self.name)}
        for key, place in self.places.items():
            if key.startswith(prefix) and key[len(prefix) : len(prefix) + 1] in {".", "["}:
                places[key[len(prefix) :].removeprefix(".")] = place
        return Source(self.name, places)

    def error(self, path: str, message: str) -> ConfigError:
        return ConfigError(path, message, self.locate(path))

    def attach(self, error: ConfigError, prefix: str = "") -> ConfigError:
        """The same error with ``prefix`` in front of its key, and with its place if it has none."""

        def placed(each: ConfigError) -> ConfigError:
            path = each.path
            if prefix and not (path == prefix or path.startswith(prefix + ".")):
                path = f"{prefix}.{path}" if path else prefix
            return ConfigError(path, each.message, each.source or self.locate(path))

        return ConfigError.together(map(placed, error.each))

    @contextmanager
    def attached(self) -> Iterator[None]:
        """A :class:`ConfigError` raised inside gets its place."""
        try:
            yield
        except ConfigError as error:
            raise self.attach(error) from error.__cause__


def parent(path: str) -> str:
    """The key around ``path``: ``a.b[0]`` -> ``a.b`` -> ``a`` -> ````."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]


class CheckpointOptions(Group):
    """The ``checkpoint_config`` section."""

    checkpoint_frequency: int = option(0, "Iterations between checkpoints; 0 keeps only the one at the end.", ge=0)
    checkpoint_at_end: bool = option(True, "Save a checkpoint when the trial ends.")
    asynchronous: bool = option(False, "Hash and copy those between iterations while training goes on.")
    num_to_keep: int | None = option(None, "Checkpoints kept; null keeps all.", ge=1)
    checkpoint_score_attribute: str | None = option(
        None, "Metric the kept checkpoints are chosen by; null keeps the newest."
    )
    checkpoint_score_order: str = option("max", "Whether a high or a low score is good.", choices=("max", "min"))


class SearchOptions(Group):
    """The ``search`` section: how points of the search space are drawn."""

    type: str | None = option(
        None,
        "Ray Tune's searcher, which needs its package (`optuna`, `hyperopt`, `bayesopt`, ...); null draws at random.",
    )
    metric: str | None = option(None, "Metric the searcher optimises; null: the scheduler's.")
    mode: str | None = option(
        None, "Whether a high or a low value is good; null: the scheduler's.", choices=("max", "min", None)
    )
    arguments: dict[str, Any] = option({}, "Other arguments of the searcher's class.")
    seed: int | None = option(None, "Seed of random points.", ge=0)
    max_concurrent_trials: int | None = option(None, "Trials running at once; null: as many as fit.", ge=1)


class ExperimentOptions(Group):
    """The settings of one experiment, beside its name."""

    run: str = option(
        REQUIRED,
        f"{', '.join(f'`{name}`' for name in OWN)}, one of RLlib's (`PPO`, ...), one a package announces, or "
        "`package.module:Class`.",
    )
    env: str | None = option(None, "Environment; moved into `config.env`.")
    config: dict[str, Any] = option({}, "The algorithm's configuration; any value may be a search space.")
    stop: dict[str, float] = option({}, "Metric -> value; the trial ends when one is at least its value.", le=1e15)
    checkpoint_config: CheckpointOptions = option(CheckpointOptions(), "What checkpoints are kept.")
    num_samples: int = option(
        1, "Times the search space is drawn from (grids are gone through each time).", ge=1, le=100_000
    )
    storage_path: str | None = option(None, "Directory or URI for results; null is `~/ray_results`.")
    max_failures: int = option(0, "Restarts of a failed trial from its last checkpoint; -1 without limit.", ge=-1)
    restore: str | None = option(None, "Checkpoint to start from.")
    env_vars: dict[str, str | int] = option({}, "Environment variables of all processes of the run, on every node.")
    time_budget_s: float | None = option(None, "Wall-clock limit of the experiment in seconds.", gt=0)
    scheduler: str | dict[str, Any] | None = option(
        None, "Trial scheduler by name, or a mapping with `type`, `metric`, `mode` and its arguments."
    )
    search: SearchOptions = option(SearchOptions(), "How points of the search space are drawn.")
    callbacks: list[Any] | None = option(
        None, f"Tune callbacks: {CALLBACKS.listed()}, or a mapping with that as `type` and its arguments."
    )
    report: str | dict[str, Any] | None = option(
        None, f"Report at the end: {REPORTS.listed()}, or a mapping with that as `type` and its arguments."
    )


MAX_NAME = 200
"""Bytes of an experiment's name; file systems take 255, and later runs add a number."""

OF_OTHERS = ("actor_rollout_ref", "rollout", "trainer", "training")
"""At the top of files of verl, GRL, AgentGym-RL and MRLM."""
COMING_FROM = "docs/coming-from.md says what the keys of GRL, verl, MRLM and others are here"

MAPPINGS = ("config", "stop", "checkpoint_config", "search", "env_vars")
"""Settings that are mappings; null is an empty one."""


@dataclass
class ExperimentSpec:
    """One experiment, its settings checked for names and types; the algorithm's configuration is checked later.

    Attributes:
        options: ``run`` is empty where no algorithm is named.
        source: Where the settings were written, keys relative to the experiment.
        wrong: Settings that were left out since they are wrong, which the checks refuse with all others.
        notices: For the user to read.
    """

    name: str
    options: ExperimentOptions
    source: Source
    wrong: list[ConfigError] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def config(self) -> dict[str, Any]:
        """The algorithm's configuration, search spaces included."""
        return self.options.config


def make_spec(name: str, settings: Mapping[str, Any], source: Source) -> ExperimentSpec:
    """One experiment, from the mapping under its name; keys of ``source`` are relative to it. Raises: ConfigError."""
    if not isinstance(settings, Mapping):
        expected = "expected the experiment's settings (`run:`, `env:`, `config:`, ...) below its name"
        return ExperimentSpec(name, build(ExperimentOptions, {"run": ""}), source, [ConfigError(name, expected)])
    plain = _plain(settings, source)
    wrong = [_unknown(str(key), plain.get("run")) for key in plain if key not in ExperimentOptions.model_fields]
    right = {key: value for key, value in plain.items() if key in ExperimentOptions.model_fields}
    try:
        options = build(ExperimentOptions, right)
    except ConfigError as error:
        wrong += error.each
        heads = {each.path.partition(".")[0].partition("[")[0] for each in wrong}
        options = build(ExperimentOptions, {"run": ""} | {key: right[key] for key in right.keys() - heads})
    for key, value in [*options.env_vars.items()]:
        if not key or "=" in key or "\0" in f"{key}{value}":
            wrong.append(ConfigError("env_vars", f"no environment holds {shown(f'{key}={value}')}"))
            del options.env_vars[key]
    if options.config.get("env", options.env) != options.env is not None:
        wrong.append(ConfigError("config.env", f"is not the experiment's `env`, {options.env!r}; keep one"))
    elif options.env is not None:
        _move_place(source, "env", "config.env")
        options = options.model_copy(update={"config": {**options.config, "env": options.env}, "env": None})
    check_name(name, source.locate(""))
    return ExperimentSpec(name, options, source, wrong)


def check_name(name: str, where: str | None = None) -> None:
    """Refuse a name that no directory can have; ``where`` is its file and line, or the flag."""
    if not name or "/" in name or name in {".", ".."} or not name.isprintable() or len(name.encode()) > MAX_NAME:
        rule = f"it must be printable, without `/`, of at most {MAX_NAME} bytes"
        raise ConfigError(shown(name), f"an experiment's name becomes a directory: {rule}", where)


def _unknown(key: str, run: Any) -> ConfigError:
    known = ExperimentOptions.model_fields
    if key in ("name", "experiment_name"):
        return ConfigError(key, "unknown key; the key above names the experiment, or --experiment-name")
    entry = OWN.get(run) if isinstance(run, str) else PPO
    within = find_key(key, entry.groups if entry else {})
    if within is None or (nearest(key, known) and key not in FLAT_KEYS):
        return unknown_key(key, known, "")
    return ConfigError(key, f"unknown key; did you mean {f'config.{within}'!r}?")


def make_specs(experiments: Mapping[str, Any], source: Source) -> list[ExperimentSpec]:
    """All experiments of one file."""
    if not experiments:
        raise ConfigError("", "the file holds no experiment", source.name)
    if "run" in experiments and experiments.keys() & ExperimentOptions.model_fields.keys():
        raise source.error("run", "stands at the top of the file; put the settings below a name: `my-experiment:`")
    inner = {key: name for name, each in experiments.items() if isinstance(each, Mapping) for key in each}
    theirs = next((key for key in OF_OTHERS if key in experiments), inner.get("agent_type"))
    if theirs is not None and "run" not in inner:
        raise source.error(theirs, f"is of another system's file; {COMING_FROM}")
    return of_each(lambda each: make_spec(str(each[0]), each[1], source.scoped(str(each[0]))), experiments.items())


def _plain(settings: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The settings with empty mappings for null, and with flat metrics."""
    plain = dict(settings)
    for key in MAPPINGS:
        value = plain.get(key, ...)
        if value is None or isinstance(value, Mapping):
            plain[key] = dict(value or {})
    if isinstance(plain.get("stop"), Mapping):
        plain["stop"] = {"/".join(path): value for path, value in flatten(plain["stop"])}
        for metric in plain["stop"]:
            _move_place(source, f"stop.{metric.replace('/', '.')}", f"stop.{metric}")
    return plain


def _move_place(source: Source, old: str, new: str) -> None:
    if old in source.places:
        source.places[new] = source.places[old]
