"""Ray Tune's searchers by name: ``search: {type: optuna, metric: ..., mode: max}``."""

from __future__ import annotations

import inspect
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.experiments.search.schedulers import POPULATIONS, split_scheduler
from rllib_lmgame.experiments.search.spaces import GRID, find_search_spaces, to_tune
from rllib_lmgame.experiments.spec import ExperimentSpec, dotted

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
