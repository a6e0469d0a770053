"""What ends a trial, as Ray Tune compares it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.telemetry.metrics import DATA_EPOCHS

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


def check_stopping_number(setting: str, metric: str, number: float) -> None:
    """Refuse a number that counters pass at once or never. Raises: ConfigError: as far as the metric's name tells."""
    if metric in _RISING or _COUNTER.fullmatch(metric):
        if setting == "stop_below":
            raise ConfigError(f"{setting}.{metric}", f"{metric} only grows; use `stop`")
        if number <= 0:
            raise ConfigError(
                f"{setting}.{metric}", f"must be greater than 0, which the first result exceeds, got {number:g}"
            )


def stopping_criteria(options: ExperimentOptions) -> dict[str, Any]:
    """``stop`` and ``stop_below`` in one mapping for Tune: metric -> what ends a trial once the metric is no less."""
    return {**options.stop, **{metric: AtMost(number) for metric, number in options.stop_below.items()}}
