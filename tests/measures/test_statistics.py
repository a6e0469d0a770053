"""Intervals, against closed forms and an independent package."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.stats import binomtest

from rllib_lmgame.measures.statistics import mean_interval, paired_by_level, paired_difference, wilson_interval


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (20, 20), (1, 3), (371, 512)])
def test_wilsons_interval_equals_scipys(successes: int, trials: int) -> None:
    theirs = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx((theirs.low, theirs.high))


def test_twenty_of_twenty_is_not_certain() -> None:
    low, high = wilson_interval(20, 20)
    assert high == 1.0 and low == pytest.approx(0.8389, abs=1e-4)


def test_levels_pair_by_name_not_by_position() -> None:
    """Results that differ by exactly .25 on every level, played in another order, with levels that only one of them
    has.
    """
    chance = random.Random(0)
    before = {f"game/{seed}": float(chance.random() < 0.5) for seed in range(40)}
    after = {level: result + 0.25 for level, result in sorted(before.items(), key=lambda _: chance.random())}
    after["game/new"], before["game/old"] = 1.0, 0.0
    assert paired_by_level(after, before) == pytest.approx((40, 0.25, 0.25, 0.25))
    mean, low, high = paired_difference(list(after.values()), list(before.values()))
    assert low < mean < high  # By position the same results look noisy.
    with pytest.raises(ValueError, match="do not pair up"):
        paired_by_level({"a": 1.0}, {"b": 1.0})


def test_the_interval_of_a_mean_of_three_holds_it_as_often_as_it_says() -> None:
    """With the normal quantile in place of Student's it would in 81 % of the cases."""
    drawn = np.random.default_rng(0).normal(size=(4000, 3))
    held = [low <= 0 <= high for _, low, high in (mean_interval([float(x) for x in row]) for row in drawn)]
    assert 0.94 < np.mean(held) < 0.96
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, high - mean, mean - low) == pytest.approx((2.0, 2.484138, 2.484138))
