"""Confidence intervals (95 %) of success rates and means, and pass@k.

Results on one level hang together: 512 episodes of 16 levels say as much of other levels as some 16 results. So
intervals are over levels where results name theirs: the results themselves show how far those of a level go together,
and Student's t counts the levels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

UPPER = 0.975
"""Quantile at the upper end of the intervals, which hold 95 %."""
PRIOR_LEVELS = 0.25
"""Levels of nothing but successes, and as many of failures, added to the spread: few levels may miss the rarer kind."""


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """Wilson score interval of a proportion (E. B. Wilson, JASA 22, 1927); both numbers may be fractions.

    Raises: ValueError: no trials, or more successes than trials.
    """
    if trials <= 0 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
    z = NormalDist().inv_cdf(UPPER)
    rate = successes / trials
    denominator = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / denominator
    half = z / denominator * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half) if rate > 0 else 0.0, min(1.0, centre + half) if rate < 1 else 1.0


@dataclass(frozen=True)
class Rate:
    """A success rate over levels.

    Attributes:
        mean: Over the results.
        levels: How many different ones were played.
        interval: For levels of this kind; ``None`` of a single level.
    """

    mean: float
    levels: int
    interval: tuple[float, float] | None


def rate_over_levels(results: Sequence[float], levels: Sequence[Hashable]) -> Rate:
    """Success rate with Wilson's interval for as many results (0 to 1) as those on different levels are worth.

    Their number is divided by the design effect: the variance of the mean over that of independent results (L. Kish,
    Survey Sampling, 1965). And by the squared ratio of Student's quantiles for levels and for results (E. L. Korn and
    B. I. Graubard, Survey Methodology 24, 1998). Where no level comes twice it is Wilson's.

    Raises: ValueError: if there are no results.
    """
    played = by_level(results, levels)
    count, mean = len(results), fmean(results)
    if len(played) == 1 < count:
        return Rate(mean, 1, None)
    worth: float = count
    if len(played) < count:
        worth /= _design_effect(played, mean) * (_quantile(len(played)) / _quantile(count)) ** 2
    return Rate(mean, len(played), wilson_interval(mean * worth, worth))


def _design_effect(played: Mapping[Hashable, Sequence[float]], mean: float) -> float:
    """Variance of the mean of all results over that of independent ones: from 1 to where a level always ends alike."""
    count = sum(map(len, played.values()))
    alike = sum(len(own) ** 2 for own in played.values()) / count
    spread = sum((result - mean) ** 2 for own in played.values() for result in own) / (count - 1)
    if spread == 0.0:
        return alike
    found = (_between(played, mean) + _prior(played, mean, 0.0)) / (count * spread)
    return min(max(1.0, found), alike * len(played) / (len(played) - 1))


def _between(played: Mapping[Hashable, Sequence[float]], mean: float) -> float:
    """Variance of the sum of all results from those of levels, by the jackknife (R. M. Bell and D. F. McCaffrey, Survey
    Methodology 28, 2002), since a level that came often pulls the mean to itself.
    """
    count = sum(map(len, played.values()))
    squares = sum(((sum(own) - len(own) * mean) / (1 - len(own) / count)) ** 2 for own in played.values())
    return squares * (len(played) - 1) / len(played)


def _prior(played: Mapping[Hashable, Sequence[float]], mean: float, least: float) -> float:
    """What :data:`PRIOR_LEVELS` of results of ``least``, and as many of 1, add to :func:`_between`."""
    size = sum(map(len, played.values())) / len(played)
    return PRIOR_LEVELS * size**2 * ((mean - least) ** 2 + (1 - mean) ** 2)


def by_level(results: Sequence[float], levels: Sequence[Hashable]) -> dict[Hashable, list[float]]:
    """The results of each level. Raises: ValueError: there are none, or not as many levels."""
    if not results:
        raise ValueError("no results")
    played: dict[Hashable, list[float]] = defaultdict(list)
    for result, level in zip(results, levels, strict=True):
        played[level].append(float(result))
    return dict(played)


def _quantile(size: int) -> float:
    """Of Student's t for the mean of ``size`` independent numbers."""
    from scipy.special import stdtrit

    return float(stdtrit(size - 1, UPPER))


def mean_interval(values: Sequence[float], levels: Sequence[Hashable] | None = None) -> tuple[float, float, float]:
    """Mean, lower and upper bound by Student's t; the interval of a single value or level is infinitely wide.

    Values on one level go together (K.-Y. Liang and S. L. Zeger, Biometrika 73, 1986). Raises: ValueError: no values.
    """
    if not values:
        raise ValueError("no values")
    played = by_level(values, range(len(values)) if levels is None else levels)
    mean = fmean(values)
    half = _half_width(played, mean, 0.0)
    return mean, mean - half, mean + half


def _half_width(played: Mapping[Hashable, Sequence[float]], mean: float, prior: float) -> float:
    """Of an interval by Student's t; ``prior`` is added to the variance of the sum of all results."""
    if len(played) == 1:
        return math.inf
    error = math.sqrt(_between(played, mean) + prior) / sum(map(len, played.values()))
    return _quantile(len(played)) * error


def paired_by_level(
    after: Mapping[str, float], before: Mapping[str, float], level_of: Callable[[str], Hashable] = str
) -> tuple[int, float, float, float]:
    """Mean of ``after - before`` over the results both have, with its interval by Student's t over levels.

    Results are 0 to 1 by name (game and seed); by default each name is a level of its own. A few levels that changed
    alike prove little: for either result :data:`PRIOR_LEVELS` of a gain of 1 and of a loss of 1 are added to the
    spread. The interval ends where differences do, at -1 and 1.

    Returns: Number of results both have, mean, lower and upper bound; of a single level these are infinite.

    Raises: ValueError: if they share fewer than two.
    """
    shared = [name for name in after if name in before]
    if len(shared) < 2:
        raise ValueError(f"{len(after)} and {len(before)} results do not pair up")
    differences = [float(after[name]) - float(before[name]) for name in shared]
    played, mean = by_level(differences, [level_of(name) for name in shared]), fmean(differences)
    half = _half_width(played, mean, 2 * _prior(played, mean, -1.0))
    if math.isinf(half):
        return len(shared), mean, -half, half
    return len(shared), mean, max(-1.0, mean - half), min(1.0, mean + half)


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """The chance that one of ``k`` samples succeeds, ``1 - C(n - c, k) / C(n, k)`` of ``n`` samples with ``c``
    successes: without bias (M. Chen et al., arXiv:2107.03374, 2021).

    Raises: ValueError: not ``0 <= successes <= samples`` or not ``1 <= k <= samples``.
    """
    if not 0 <= successes <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {successes} successes in {samples} samples")
    return 1.0 - math.prod((samples - successes - i) / (samples - i) for i in range(k))


def mean_pass_at_k(results: Sequence[Sequence[bool]], k: int) -> float | None:
    """Mean of :func:`pass_at_k` over levels with at least ``k`` samples (a dropped one is missing); ``None``: no such.

    ``results`` are those of each level.
    """
    found = [pass_at_k(len(own), sum(own), k) for own in results if len(own) >= k]
    return sum(found) / len(found) if found else None
