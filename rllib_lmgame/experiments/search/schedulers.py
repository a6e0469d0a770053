"""Trial schedulers and searchers of Ray Tune by name, with their arguments checked against the class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.experiments.search.spaces import MUTATIONS, find_search_spaces, to_tune, tune_mutations
from rllib_lmgame.experiments.spec import CheckpointOptions, ExperimentSpec

ALIASES = {
    "asha": "async_hyperband",
    "async_successive_halving": "async_hyperband",
    "population_based_training": "pbt",
    "medianstoppingrule": "median_stopping_rule",
}
FIFO = "fifo"
POPULATIONS = ("pbt", "pb2")
"""Schedulers whose trials take over one another's weights and settings."""


def split_scheduler(setting: str | Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a ``scheduler`` setting; ``fifo`` if there is none."""
    if setting is None:
        return FIFO, {}
    if isinstance(setting, str):
        return _name(setting), {}
    arguments = dict(setting)
    kind = arguments.pop("type", None)
    if not isinstance(kind, str):
        raise ConfigError("scheduler.type", "missing; name the scheduler, e.g. `type: asha`")
    return _name(kind), arguments


def _name(text: str) -> str:
    lowered = text.lower().replace("-", "_")
    return ALIASES.get(lowered, lowered)


def _load(table: Mapping[str, Any], name: str, key: str, what: str) -> Any:
    """A class of Tune's tables, where some stand as functions that import it."""
    if name not in table:
        hint = did_you_mean(name, sorted(table), "known: " + ", ".join(sorted(table)))
        raise ConfigError(key, f"there is no {what} {name!r}; {hint}")
    try:
        return table[name] if inspect.isclass(table[name]) else table[name]()
    except ImportError as error:
        raise ConfigError(key, f"{name} needs a package that is not installed: {error}") from None


def check_scheduler(setting: str | Mapping[str, Any] | None, checkpoints: CheckpointOptions | None = None) -> None:
    """Raise :class:`ConfigError` for an unknown scheduler, unknown arguments, a missing metric, or checkpoints that are
    deleted before another trial can take them over.
    """
    make_scheduler(setting)
    name, _ = split_scheduler(setting)
    if name in POPULATIONS and checkpoints is not None and checkpoints.num_to_keep is not None:
        why = f"{name} starts trials from one another's checkpoints; leave it out"
        raise ConfigError("checkpoint_config.num_to_keep", why)


def make_scheduler(setting: str | Mapping[str, Any] | None, wrap: Any = None) -> Any:
    """The scheduler of a setting: a name, or a mapping with ``type`` and arguments; ``wrap`` may derive its class."""
    from ray.tune.schedulers import SCHEDULER_IMPORT

    name, arguments = split_scheduler(setting)
    cls = _load({**SCHEDULER_IMPORT, **dict.fromkeys(ALIASES)}, name, "scheduler.type", "scheduler")
    accepted = _accepted(cls, arguments, "scheduler", name)
    if name != FIFO and "metric" in accepted:
        _check_aim(arguments, "scheduler")
    if MUTATIONS in arguments:
        arguments[MUTATIONS] = tune_mutations(arguments[MUTATIONS])
    try:
        return (wrap(cls) if wrap else cls)(**arguments)
    except Exception as error:  # Tune raises TuneError, RuntimeError and more for wrong arguments and missing packages.
        raise ConfigError("scheduler", f"{name}: {str(error) or 'its arguments do not fit together'}") from error


def _accepted(cls: type, given: Mapping[str, Any], key: str, name: str, ours: Sequence[str] = ()) -> list[str]:
    """Arguments of a class. Raises: ConfigError: it is given another one, or one that is ``ours`` to set."""
    known = [p for p in inspect.signature(cls.__init__).parameters if p not in {"self", "args", "kwargs", *ours}]
    for argument in given:
        if argument not in known:
            hint = did_you_mean(argument, known, f"it takes {', '.join(known) or 'no arguments'}")
            raise ConfigError(f"{key}.{argument}", f"{name} has no such argument; {hint}")
    return known


def _check_aim(given: Mapping[str, Any], key: str) -> None:
    if not isinstance(given.get("metric"), str):
        raise ConfigError(f"{key}.metric", "missing; name the metric trials are compared by")
    if given.get("mode") not in ("max", "min"):
        raise ConfigError(f"{key}.mode", f"must be max or min, got {describe(given.get('mode'))}")


_SEEDS = ("seed", "random_state_seed", "random_state")
"""What searchers call their seed."""
_OF_RAY = ("space", "metric", "mode", "points_to_evaluate", "mlflow_tracking_uri")


def make_searcher(spec: ExperimentSpec) -> Any:
    """What draws the points of an experiment's search space.

    Raises: ConfigError: no such searcher or argument, a missing package, or a space that the searcher cannot draw from.
    """
    from ray.tune.search import SEARCH_ALG_IMPORT
    from ray.tune.search.basic_variant import BasicVariantGenerator

    search = spec.options.search
    if search.type is None:
        return BasicVariantGenerator(max_concurrent=search.max_concurrent_trials or 0, random_state=search.seed)
    name, scheduler = split_scheduler(spec.options.scheduler)
    if name in POPULATIONS:
        raise ConfigError("search.type", f"{name} changes settings itself; leave the searcher or the scheduler out")
    cls = _load(SEARCH_ALG_IMPORT, search.type, "search.type", "searcher")
    accepted = _accepted(cls, search.arguments, "search.arguments", search.type, _OF_RAY)
    seeds = {name: search.seed for name in _SEEDS if name in accepted and search.seed is not None}
    aim = {key: getattr(search, key) or scheduler.get(key) for key in ("metric", "mode")}
    _check_aim(aim, "search")
    if not find_search_spaces(spec.config):
        raise ConfigError("search.type", "there is no search space in config, e.g. lr: {loguniform: [1e-6, 1e-4]}")
    try:
        searcher = cls(**{**seeds, **search.arguments})
        accepts = searcher.set_search_properties(aim["metric"], aim["mode"], to_tune(spec.config))
    except ConfigError:
        raise
    except Exception as error:  # Ray's and the package's own, among them AssertionError for a missing package.
        raise ConfigError("search", f"{search.type}: {str(error) or type(error).__name__}") from error
    if not accepts:
        raise ConfigError("search.type", f"{search.type} does not take the search space of config")
    return cls(**{**seeds, **search.arguments, **aim})
