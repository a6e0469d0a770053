"""What ends a trial, as Ray Tune compares it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.telemetry.metrics import DATA_EPOCHS, RATES

if TYPE_CHECKING:
    from rllib_lmgame.experiments.spec import ExperimentOptions


class AtMost:
    """A number that a metric reaches from above.

    Tune ends a trial once ``result[metric] >= number``; Python asks this object instead, with the sides swapped.
    """

    __array_ufunc__ = None
    """NumPy's numbers leave the comparison to this class too."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __le__(self, result: Any) -> bool:
        return bool(result <= self.number)

    def __repr__(self) -> str:
        return f"at most {self.number:g}"


_RISING = frozenset({"training_iteration", "ppo_iteration", "supervised_steps", "time_total_s", DATA_EPOCHS})
"""Numbers at the top of a result that begin at 0 and only grow, beside RLlib's counters."""

_COUNTER = re.compile(r"(.*/)?num_(episodes|((env|agent|module)_steps_(sampled|trained)))_lifetime")


def check_stopping_number(setting: str, metric: str, number: float, *, ours: bool) -> str | None:
    """Refuse a number to stop at that is passed at once or never; returns a notice if it only seems unreachable.

    ``ours``: only this package and RLlib report numbers. Raises: ConfigError: as far as the metric's name tells.
    """
    key = f"{setting}.{metric}"
    if metric in _RISING or _COUNTER.fullmatch(metric):
        if setting == "stop_below":
            raise ConfigError(key, f"{metric} only grows; use `stop`")
        if number <= 0:
            raise ConfigError(key, f"must be greater than 0, which the first result exceeds, got {number:g}")
    elif not RATES.isdisjoint(metric.split("/")):
        stops = setting == "stop"
        if not (0 < number <= 1 if stops else 0 <= number < 1):
            if not ours:
                return f"{key}: if this is a share between 0 and 1, the first result reaches {number:g} or none does"
            allowed = "greater than 0, at most 1" if stops else "at least 0, less than 1"
            raise ConfigError(key, f"{metric} lies between 0 and 1: must be {allowed}, got {number:g}")
    return None


def stopping_criteria(options: ExperimentOptions) -> dict[str, Any]:
    """``stop`` and ``stop_below`` in one mapping for Tune: metric -> what ends a trial once the metric is no less."""
    return {**options.stop, **{metric: AtMost(number) for metric, number in options.stop_below.items()}}
