"""Scores of several samples a level, against enumeration, plain loops and scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import comb

from rllib_lmgame.measures.samples import DRAWS, interval_over_levels, mean_pass_at_k, pass_at_k
from rllib_lmgame.measures.statistics import rate_over_levels

SAMPLES = st.lists(st.booleans(), min_size=1, max_size=9)


@given(SAMPLES, st.data())
def test_pass_at_k_is_the_share_of_draws_of_k_with_a_success(samples: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(samples)))
    draws = [any(drawn) for drawn in itertools.combinations(samples, k)]
    n, c = len(samples), sum(samples)
    assert pass_at_k(n, c, k) == pytest.approx(sum(draws) / len(draws))
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k))
    assert pass_at_k(n, c, n) == any(samples) and pass_at_k(n, c, 1) == pytest.approx(c / n)


@given(st.lists(SAMPLES, min_size=1, max_size=6), st.integers(1, 9))
def test_its_mean_is_over_levels_with_enough_samples(levels: list[list[bool]], k: int) -> None:
    enough = [pass_at_k(len(own), sum(own), k) for own in levels if len(own) >= k]
    assert mean_pass_at_k(levels, k) == (pytest.approx(math.fsum(enough) / len(enough)) if enough else None)


@pytest.mark.parametrize("numbers", [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_what_is_no_share_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(*numbers)


def test_the_interval_is_wilsons_where_no_level_comes_twice() -> None:
    results = [1.0] * 14 + [0.0] * 6
    expected = stats.binomtest(14, 20).proportion_ci(method="wilson")
    assert interval_over_levels(results, range(20)) == pytest.approx((expected.low, expected.high))


def test_otherwise_levels_are_drawn_anew() -> None:
    """Close to scipy's with other draws."""
    rng = np.random.default_rng(3)
    outcomes = (rng.random((40, 4)) < rng.random((40, 1))).astype(float)
    results, levels = outcomes.ravel().tolist(), [level for level in range(40) for _ in range(4)]
    found = interval_over_levels(results, levels)
    other = stats.bootstrap(
        (outcomes.mean(axis=1),), np.mean, n_resamples=DRAWS, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert found == pytest.approx(tuple(other), abs=0.01)
    assert interval_over_levels(results, levels, seed=0) == found


def test_a_level_that_came_more_often_counts_as_often() -> None:
    levels = [0] * 6 + [1] * 2 + [2] * 4
    low, high = interval_over_levels([1.0] * 6 + [0.0] * 2 + [1.0, 0.0, 1.0, 0.0], levels) or (0, 0)
    assert 0.0 <= low < 8 / 12 < high <= 1.0


def test_drawing_again_what_is_all_alike_says_nothing() -> None:
    levels = [level for level in range(5) for _ in range(4)]
    assert interval_over_levels([1.0] * 20, levels) == rate_over_levels([1.0] * 20, levels).interval != (1.0, 1.0)
    assert interval_over_levels([1.0, 0.0, 1.0], ["one"] * 3) is None
