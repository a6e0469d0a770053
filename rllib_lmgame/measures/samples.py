"""Scores of several samples a level: the chance that one of k succeeds, and intervals over levels."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from rllib_lmgame.measures.statistics import by_level, rate_over_levels

DRAWS = 10_000
"""Times that a bootstrap draws the levels anew."""

_AT_ONCE = 500


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


def interval_over_levels(
    results: Sequence[float], levels: Sequence[Hashable], *, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """Of a success rate (results 0 to 1); ``None`` of a single level that came several times.

    Where no level comes twice it is Wilson's. Otherwise whole levels are drawn anew, :data:`DRAWS` times, and it is
    between percentiles of the means (B. Efron, Annals of Statistics 7, 1979). Levels that all came out alike say
    nothing by being drawn again: there it is that of :func:`~rllib_lmgame.measures.statistics.rate_over_levels`.

    Raises: ValueError: no results.
    """
    played = [*by_level(results, levels).values()]
    if len(played) == len(results) or len({sum(own) / len(own) for own in played}) == 1:
        return rate_over_levels(results, levels, confidence).interval
    sums, counts = np.array([sum(own) for own in played]), np.array([len(own) for own in played])
    rng, means = np.random.default_rng(seed), []
    for start in range(0, DRAWS, _AT_ONCE):
        drawn = rng.integers(len(played), size=(min(_AT_ONCE, DRAWS - start), len(played)))
        means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)
