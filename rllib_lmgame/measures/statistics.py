"""Confidence intervals of success rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev


def wilson_interval(successes: float, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion (E. B. Wilson, JASA 22, 1927).

    ``successes`` may be a fraction where a trial can be won in part (several seats in one episode).

    Raises:
        ValueError: if there are no trials, or more successes than trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / trials
    denominator = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / denominator
    half = z / denominator * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean with its confidence interval by Student's t, which is infinitely wide for a single value.

    Returns:
        Mean, lower and upper bound.

    Raises:
        ValueError: if there are no values.
    """
    if not values:
        raise ValueError("no values")
    mean = fmean(values)
    if len(values) == 1:
        return mean, -math.inf, math.inf
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def paired_difference(
    after: Sequence[float], before: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean of ``after - before`` over the same levels, with its confidence interval by Student's t.

    Returns:
        Mean, lower and upper bound.

    Raises:
        ValueError: if the sequences do not pair up, or have fewer than two entries.
    """
    if len(after) != len(before) or len(after) < 2:
        raise ValueError(f"{len(after)} and {len(before)} results do not pair up")
    differences = [float(a) - float(b) for a, b in zip(after, before, strict=True)]
    return mean_interval(differences, confidence)


def paired_by_level(
    after: Mapping[str, float], before: Mapping[str, float], confidence: float = 0.95
) -> tuple[int, float, float, float]:
    """:func:`paired_difference` over the levels that both have, whatever their order.

    Args:
        after: Result by level (game and seed).
        before: The same, to compare with.
        confidence: Of the interval.

    Returns:
        Number of levels both have, mean, lower and upper bound.

    Raises:
        ValueError: if they share fewer than two levels.
    """
    shared = [level for level in after if level in before]
    return len(shared), *paired_difference(
        [after[level] for level in shared], [before[level] for level in shared], confidence
    )
