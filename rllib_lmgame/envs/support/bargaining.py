"""How good an outcome of a bargain is among all that were possible: Pareto efficiency, share of the joint value, Nash's
product.

An outcome gives each player a number, not below its part of the disagreement (what it has without a deal), which is 0
by default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Outcome = Sequence[float]
TOLERANCE = 1e-9


def dominates(one: Outcome, other: Outcome) -> bool:
    """``one`` is no worse for anybody, and better for somebody."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b - TOLERANCE for a, b in pairs) and any(a > b + TOLERANCE for a, b in pairs)


def frontier(possible: Iterable[Outcome]) -> list[tuple[float, ...]]:
    """The Pareto-efficient outcomes among the ``possible`` ones, each once, in order."""
    different = sorted({tuple(outcome) for outcome in possible})
    return [outcome for outcome in different if not any(dominates(other, outcome) for other in different)]


def is_pareto_efficient(outcome: Outcome, possible: Iterable[Outcome]) -> bool:
    """Nothing ``possible`` is better for somebody and no worse for anybody."""
    return not any(dominates(other, outcome) for other in possible)


def joint_share(outcome: Outcome, possible: Iterable[Outcome]) -> float:
    """Sum of the players' values, relative to the largest one possible (1 if that is 0)."""
    return _ratio(math.fsum(outcome), max(math.fsum(other) for other in possible))


def nash_product(outcome: Outcome) -> float:
    """Product of what the players gain over having no deal; 0 if one gains nothing (J. F. Nash 1950)."""
    return math.prod(max(0.0, value) for value in outcome)


def nash_share(outcome: Outcome, possible: Iterable[Outcome]) -> float:
    """:func:`nash_product` relative to the largest one possible (1 if that is 0: there is nothing to bargain for)."""
    best = max(nash_product(other) for other in possible)
    return _ratio(nash_product(outcome), best)


def outcome_measures(outcome: Sequence[float] | None, possible: Sequence[Sequence[float]]) -> dict[str, float]:
    """What one game makes of what there was, as the games report it (``info["measures"]``).

    Args:
        outcome: What each player got; ``None`` without a deal.
        possible: What each player would get by each deal that was possible.
    """
    got = outcome if outcome is not None else [0.0] * len(possible[0])
    return {
        "deal": float(outcome is not None),
        "pareto_efficient": float(outcome is not None and is_pareto_efficient(got, possible)),
        "joint_share": joint_share(got, possible),
        "nash_share": nash_share(got, possible),
    }


def _ratio(value: float, best: float) -> float:
    return value / best if best > TOLERANCE else 1.0
