"""What ends a trial, as Ray Tune compares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def stopping_criteria(options: ExperimentOptions) -> dict[str, Any]:
    """``stop`` and ``stop_below`` in one mapping for Tune: metric -> what ends a trial once the metric is no less."""
    return {**options.stop, **{metric: AtMost(number) for metric, number in options.stop_below.items()}}
