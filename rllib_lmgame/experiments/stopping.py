"""What ends a trial, as Ray Tune compares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.telemetry.metrics import RATES

if TYPE_CHECKING:
    from rllib_lmgame.experiments.spec import ExperimentOptions


class AtMost:
    """A number that a metric reaches from above.

    Tune ends a trial once ``result[metric] >= number``; with this in the number's place Python asks it instead, with
    the sides changed.
    """

    __array_ufunc__ = None
    """NumPy's numbers leave the comparison to this class too."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __le__(self, result: Any) -> bool:
        return bool(result <= self.number)

    def __repr__(self) -> str:
        return f"at most {self.number:g}"


_RISING = frozenset({"training_iteration", "ppo_iteration", "supervised_steps", "time_total_s"})
"""Numbers that begin at 0 and only grow, beside those whose names end in ``_lifetime``."""


def check_stopping_number(setting: str, metric: str, number: float) -> None:
    """Whether a trial can come to a number, and has not come to it before it begins.

    Args:
        setting: ``stop`` or ``stop_below``.
        metric: What it is a number of.
        number: The number.

    Raises:
        ConfigError: if it is passed by the first result or never, as far as the metric's name says.
    """
    key, parts = f"{setting}.{metric}", metric.split("/")
    if parts[-1] in _RISING or parts[-1].endswith("_lifetime"):
        if setting == "stop_below":
            raise ConfigError(key, f"{metric} only grows; use `stop`")
        if number <= 0:
            raise ConfigError(key, f"must be greater than 0, which the first result exceeds, got {number:g}")
    elif not RATES.isdisjoint(parts):
        if setting == "stop" and not 0 < number <= 1:
            raise ConfigError(key, f"{metric} lies between 0 and 1: must be greater than 0, at most 1, got {number:g}")
        if setting == "stop_below" and not 0 <= number < 1:
            raise ConfigError(key, f"{metric} lies between 0 and 1: must be at least 0, less than 1, got {number:g}")


def stopping_criteria(options: ExperimentOptions) -> dict[str, Any]:
    """``stop`` and ``stop_below`` in one mapping for Tune: metric -> what ends a trial once the metric is no less."""
    return {**options.stop, **{metric: AtMost(number) for metric, number in options.stop_below.items()}}
