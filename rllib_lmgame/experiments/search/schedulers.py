"""Trial schedulers by name, with their arguments checked against the class."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.experiments.search.mutations import MUTATIONS, tune_mutations
from rllib_lmgame.experiments.spec import CheckpointOptions

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
        cls = _measured(cls)
    if MUTATIONS in arguments:
        arguments[MUTATIONS] = tune_mutations(arguments[MUTATIONS])
    try:
        return (wrap(cls) if wrap else cls)(**arguments)
    except Exception as error:  # Tune raises TuneError, RuntimeError and more for wrong arguments and missing packages.
        install = f" ({PB2_NEEDS})" if name == "pb2" and "install" in str(error) else ""
        raise ConfigError(
            "scheduler", f"{name}: {str(error) or 'its arguments do not fit together'}{install}"
        ) from error


class _Measured:
    """Mix-in of a trial scheduler: skips results without its metric (NaN)."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        value = result.get(self.metric)  # type: ignore[attr-defined]
        if isinstance(value, float) and math.isnan(value):
            return "CONTINUE"
        return super().on_trial_result(tune_controller, trial, result)  # type: ignore[misc]


@functools.cache
def _measured(scheduler: type) -> type:
    return type(scheduler.__name__, (_Measured, scheduler), {"__module__": __name__})


def _check_metric(arguments: Mapping[str, Any]) -> None:
    metric, mode = arguments.get("metric"), arguments.get("mode")
    if not isinstance(metric, str):
        example = "e.g. env_runners/episode_return_mean"
        raise ConfigError("scheduler.metric", f"missing; name the metric trials are compared by, {example}")
    if mode not in ("max", "min"):
        raise ConfigError("scheduler.mode", f"must be max or min, got {describe(mode)}")
