"""Moments and explained variance over learners, where a deviation is small beside what deviates."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_objectives import Meeting, ThreadRanks

from rllib_lmgame.learners.metrics import RunningMoments, explained_variance
from rllib_lmgame.learners.ranks import Ranks


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from([0.0, 1.0, -1e4, 1e7]))
def test_moments_are_those_of_everybodys_numbers(seed: int, learners: int, centre: float) -> None:
    """Also where one learner has none."""
    rng = np.random.default_rng(seed)
    values = centre + rng.normal(0.0, 0.01, 40)
    parts = np.split(values, np.sort(rng.integers(0, 41, learners - 1)))
    meeting, found = Meeting(learners), [dict[str, Any]()] * learners

    def learner(rank: int) -> None:
        found[rank] = RunningMoments.of(parts[rank], ThreadRanks(meeting, rank))

    threads = [threading.Thread(target=learner, args=(rank,)) for rank in range(learners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    for each in found:
        assert each == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("count", [7, 1000, 12001])
@pytest.mark.parametrize("value", [0.0, 1e-3, 84.7, 1000.7, 5000.3, 1e7])
def test_of_returns_that_do_not_vary_nothing_is_explained(value: float, count: int) -> None:
    returns = np.full(count, value, np.float32)
    values = (returns + np.random.default_rng(0).normal(0.0, 0.5, count)).astype(np.float32)
    assert np.isnan(explained_variance(values, returns, Ranks()))
    rounded = returns.copy()
    rounded[::3] = np.nextafter(np.float32(value), np.float32(np.inf))
    assert np.isnan(explained_variance(values, rounded, Ranks()))


@pytest.mark.parametrize(("centre", "scale"), [(0.0, 1e-7), (0.0, 1.0), (1e4, 0.01), (-30.0, 1e-4), (1e7, 10.0)])
def test_explained_variance_of_returns_of_any_size(centre: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    returns = centre + rng.normal(0.0, scale, 5000)
    values = returns + rng.normal(0.0, scale / 2, 5000)
    expected = 1.0 - np.var(returns - values) / np.var(returns)
    assert explained_variance(values, returns, Ranks()) == pytest.approx(expected, rel=1e-6)
