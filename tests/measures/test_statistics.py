"""Intervals, against closed forms and an independent package."""

from __future__ import annotations

import random

import pytest
from scipy.stats import binomtest

from rllib_lmgame.measures.statistics import paired_by_level, paired_difference, wilson_interval


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
