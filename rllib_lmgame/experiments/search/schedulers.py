"""Trial schedulers and searchers of Ray Tune by name, with their arguments checked against the class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.experiments.search.spaces import GRID, MUTATIONS, find_search_spaces, to_tune, tune_mutations
from rllib_lmgame.experiments.spec import CheckpointOptions, ExperimentSpec, dotted

ALIASES = {
    "asha": "async_hyperband",
    "async_successive_halving": "async_hyperband",
    "population_based_training": "pbt",
    "medianstoppingrule": "median_stopping_rule",
}
FIFO = "fifo"
POPULATIONS = ("pbt", "pb2")
"""Schedulers whose trials take over one another's weights and settings."""
PB2_NEEDS = "pip install GPy scikit-learn"


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


def scheduler_class(name: str) -> type:
    from ray.tune.schedulers import SCHEDULER_IMPORT

    if name not in SCHEDULER_IMPORT:
        known = sorted({*SCHEDULER_IMPORT, *ALIASES})
        hint = did_you_mean(name, known, "known: " + ", ".join(known))
        raise ConfigError("scheduler.type", f"there is no scheduler {name!r}; {hint}")
    found = SCHEDULER_IMPORT[name]
    if not inspect.isfunction(found):
        return found
    try:
        return found()
    except ImportError as error:
        raise ConfigError("scheduler.type", f"{name} needs a package that is not installed: {error}") from None


def check_scheduler(
    setting: str | Mapping[str, Any] | None, num_trials: int, checkpoints: CheckpointOptions | None = None
) -> None:
    """Raise :class:`ConfigError` for an unknown scheduler, unknown arguments, a missing metric, or checkpoints that are
    deleted before another trial can take them over.
    """
    make_scheduler(setting)
    name, _ = split_scheduler(setting)
    if name in POPULATIONS and num_trials < 2:
        why = "exchanges weights between trials and needs at least 2; set `num_samples`"
        raise ConfigError("scheduler", f"{name} {why}")
    if name in POPULATIONS and checkpoints is not None and checkpoints.num_to_keep is not None:
        why = f"{name} starts trials from one another's checkpoints; leave it out"
        raise ConfigError("checkpoint_config.num_to_keep", why)


def make_scheduler(setting: str | Mapping[str, Any] | None, wrap: Any = None) -> Any:
    """The scheduler of a setting: a name, or a mapping with ``type`` and arguments; ``wrap`` may derive its class."""
    name, arguments = split_scheduler(setting)
    cls = scheduler_class(name)
    accepted = [p for p in inspect.signature(cls.__init__).parameters if p not in {"self", "args", "kwargs"}]
    for key in arguments:
        if key not in accepted:
            hint = did_you_mean(key, accepted, f"it takes {', '.join(accepted) or 'no arguments'}")
            raise ConfigError(f"scheduler.{key}", f"{name} has no such argument; {hint}")
    if name != FIFO and "metric" in accepted:
        _check_metric(arguments)
    if MUTATIONS in arguments:
        arguments[MUTATIONS] = tune_mutations(arguments[MUTATIONS])
    try:
        return (wrap(cls) if wrap else cls)(**arguments)
    except Exception as error:  # Tune raises TuneError, RuntimeError and more for wrong arguments and missing packages.
        install = f" ({PB2_NEEDS})" if name == "pb2" and "install" in str(error) else ""
        raise ConfigError(
            "scheduler", f"{name}: {str(error) or 'its arguments do not fit together'}{install}"
        ) from error


def _check_metric(arguments: Mapping[str, Any]) -> None:
    metric, mode = arguments.get("metric"), arguments.get("mode")
    if not isinstance(metric, str):
        example = "e.g. env_runners/episode_return_mean"
        raise ConfigError("scheduler.metric", f"missing; name the metric trials are compared by, {example}")
    if mode not in ("max", "min"):
        raise ConfigError("scheduler.mode", f"must be max or min, got {describe(mode)}")


_SEEDS = ("seed", "random_state_seed", "random_state")
"""What searchers call their seed."""
_OF_RAY = ("space", "metric", "mode", "points_to_evaluate", "mlflow_tracking_uri")


def make_searcher(spec: ExperimentSpec) -> Any:
    """What draws the points of an experiment's search space.

    Raises: ConfigError: no such searcher or argument, a missing package, or a space that the searcher cannot draw from.
    """
    from ray.tune.search.basic_variant import BasicVariantGenerator

    search = spec.search
    if search.type is None:
        for key in ("metric", "mode", "arguments"):
            if getattr(search, key):
                raise ConfigError(f"search.{key}", "has no effect without search.type, the name of a searcher")
        return BasicVariantGenerator(max_concurrent=search.max_concurrent_trials or 0, random_state=search.seed)
    cls = _searcher_class(search.type)
    accepted = list(inspect.signature(cls.__init__).parameters)
    for key in search.arguments:
        if key not in accepted or key in ("self", *_OF_RAY):
            known = [name for name in accepted if name not in ("self", *_OF_RAY)]
            hint = did_you_mean(key, known, f"it takes {', '.join(known)}")
            raise ConfigError(f"search.arguments.{key}", f"{search.type} has no such argument; {hint}")
    seeds = {name: search.seed for name in _SEEDS if name in accepted and search.seed is not None}
    metric, mode = _aim(spec)
    _check_space(spec)
    try:
        searcher = cls(**{**seeds, **search.arguments})
        accepts = searcher.set_search_properties(metric, mode, to_tune(spec.config))
    except Exception as error:  # Ray's and the package's own, among them AssertionError for a missing package.
        raise ConfigError("search", f"{search.type}: {str(error) or type(error).__name__}") from error
    if not accepts:
        raise ConfigError("search.type", f"{search.type} does not take the search space of config")
    return cls(**{**seeds, **search.arguments, "metric": metric, "mode": mode})


def _searcher_class(name: str) -> Any:
    from ray.tune.search import SEARCH_ALG_IMPORT

    known = sorted(set(SEARCH_ALG_IMPORT) - {"random", "variant_generator"})
    if name not in known:
        hint = did_you_mean(name, known, "known: " + ", ".join(known))
        raise ConfigError("search.type", f"there is no searcher {name!r}; {hint} (null draws at random)")
    try:
        return SEARCH_ALG_IMPORT[name]()
    except ImportError as error:
        raise ConfigError("search.type", f"{name} needs a package that is not installed: {error}") from None


def _aim(spec: ExperimentSpec) -> tuple[str, str]:
    """Metric and mode of the section, else of the scheduler."""
    name, scheduler = split_scheduler(spec.options.scheduler)
    if name in POPULATIONS:
        raise ConfigError("search.type", f"{name} changes settings itself; leave the searcher or the scheduler out")
    metric, mode = spec.search.metric or scheduler.get("metric"), spec.search.mode or scheduler.get("mode")
    for key, value in (("metric", metric), ("mode", mode)):
        if value is None:
            raise ConfigError(f"search.{key}", "missing; a searcher needs `metric` and `mode: max` or `min`")
    return str(metric), str(mode)


def _check_space(spec: ExperimentSpec) -> None:
    nodes = find_search_spaces(spec.config)
    if not nodes:
        raise ConfigError(
            "search.type", "there is no search space in config; write e.g. lr: {loguniform: [1e-6, 1e-4]}"
        )
    for node in nodes:
        if node.kind in (GRID, "sample_from"):
            where = dotted(("config", *node.path, node.kind))
            raise ConfigError(where, "a searcher draws from distributions and `choice`; use those, or leave it out")
