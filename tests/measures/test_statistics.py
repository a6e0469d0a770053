"""Intervals, against closed forms and an independent package."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import comb
from scipy.stats import binomtest
from scipy.stats import t as student

from rllib_lmgame.measures.statistics import (
    mean_interval,
    mean_pass_at_k,
    paired_by_level,
    pass_at_k,
    rate_over_levels,
    wilson_interval,
)


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (20, 20), (1, 3), (371, 512)])
def test_wilsons_interval_equals_scipys(successes: int, trials: int) -> None:
    theirs = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx((theirs.low, theirs.high))


def test_levels_pair_by_name_not_by_position() -> None:
    """Results that differ by exactly .25 on every level, played in another order, with levels that only one of them
    has.
    """
    chance = random.Random(0)
    before = {f"game/{seed}": float(chance.random() < 0.5) for seed in range(40)}
    after = {level: result + 0.25 for level, result in sorted(before.items(), key=lambda _: chance.random())}
    after["game/new"], before["game/old"] = 1.0, 0.0
    count, mean, low, high = paired_by_level(after, before)
    assert (count, mean) == (40, 0.25) and high - low < 0.11
    by_position = mean_interval([a - b for a, b in zip(after.values(), before.values(), strict=False)])
    assert by_position[2] - by_position[1] > 0.3  # There the same results look noisy.
    with pytest.raises(ValueError, match="do not pair up"):
        paired_by_level({"a": 1.0}, {"b": 1.0})


def test_the_interval_of_a_mean_of_three_holds_it_as_often_as_it_says() -> None:
    """With the normal quantile in place of Student's it would in 81 % of the cases."""
    drawn = np.random.default_rng(0).normal(size=(4000, 3))
    held = [low <= 0 <= high for _, low, high in (mean_interval([float(x) for x in row]) for row in drawn)]
    assert 0.94 < np.mean(held) < 0.96
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, high - mean, mean - low) == pytest.approx((2.0, 2.484138, 2.484138))


KINDS: dict[str, Callable[[np.random.Generator, float, int], np.ndarray]] = {
    "greedy": lambda chance, mean, size: (chance.random(size) < mean).astype(float),
    "some always, some never": lambda chance, mean, size: chance.beta(mean, 1 - mean, size=size),
    "alike": lambda chance, mean, size: chance.beta(10 * mean, 10 - 10 * mean, size=size),
    "the same": lambda chance, mean, size: np.full(size, mean),
}
"""Success rates of levels, whose mean is given."""


def drawn(chance: np.random.Generator, kind: str, mean: float, size: int) -> tuple[list[float], list[int]]:
    """512 results on levels drawn from ``size`` ones."""
    rates = KINDS[kind](chance, mean, size)
    levels = chance.integers(size, size=512)
    return (chance.random(512) < rates[levels]).astype(float).tolist(), levels.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [16, 1800])
def test_an_interval_over_levels_holds_the_rate_of_all_such_levels(kind: str, size: int) -> None:
    """1,800 levels are some 446 in 512 draws. With results counted for levels it would in a third of the cases."""
    chance = np.random.default_rng(size)
    held, too_narrow, paired = [], [], []
    for number in range(600):
        mean = (0.05, 0.3, 0.774)[number % 3]
        results, levels = drawn(chance, kind, mean, size)
        rate = rate_over_levels(results, levels)
        assert rate.interval is not None and rate.levels == len(set(levels))
        held.append(rate.interval[0] <= mean <= rate.interval[1])
        low, high = wilson_interval(sum(results), 512)
        too_narrow.append(low <= mean <= high)
        before = (chance.random(512) < KINDS[kind](chance, 0.4, size)[levels]).tolist()
        _, low, high = mean_interval([after - was for after, was in zip(results, before, strict=True)], levels)
        paired.append(low <= mean - 0.4 <= high)
    assert np.mean(held) >= 0.93 and np.mean(paired) >= 0.93
    assert kind != "greedy" or size > 29 or np.mean(too_narrow) < 0.4


def test_a_difference_goes_by_levels() -> None:
    after = {f"{level} {seed}": float(level < 4) for level in range(8) for seed in range(64)}
    before = dict.fromkeys(after, 0.0)
    count, mean, low, high = paired_by_level(after, before, lambda name: name.split()[0])
    once = paired_by_level({f"{level} 0": float(level < 4) for level in range(8)}, before)
    assert (count, mean, low, high) == pytest.approx((512, *once[1:])) and low < 0 < high < 1.2


def test_no_difference_of_rates_reaches_past_one() -> None:
    after = {str(level): 1.0 for level in range(8)}
    before = dict.fromkeys(after, 0.0)
    (_, gain, least, most), (_, loss, low, high) = paired_by_level(after, before), paired_by_level(before, after)
    assert (gain, most, loss, low) == (1.0, 1.0, -1.0, -1.0) and 0 < least < 1 and high == -least
    assert paired_by_level(after, before, lambda _: "one")[2:] == (-math.inf, math.inf)


@pytest.mark.parametrize(("size", "share"), [(5, 0.15), (16, 0.05), (29, 0.05), (83, 0.15)])
def test_few_levels_that_all_ended_as_before_prove_no_certainty(size: int, share: float) -> None:
    """A share of all levels is won that was lost, greedily. With the levels that came for all of them the interval
    would hold the share in .55 to .75 of the cases of few levels, and often have no width at all.
    """
    chance = np.random.default_rng(size)
    held = []
    for _ in range(300):
        won = (chance.random(size) < share).astype(float)
        after = {str(number): won[number % size] for number in range(512)}
        _, mean, low, high = paired_by_level(after, dict.fromkeys(after, 0.0), lambda name, n=size: int(name) % n)
        held.append(low <= share <= high)
    assert np.mean(held) >= 0.9 and low < mean < high


def test_the_interval_is_wilsons_where_no_level_comes_twice_and_as_wide_where_each_always_ends_alike() -> None:
    results = [float(number % 3 == 0) for number in range(60)]
    assert rate_over_levels(results, range(60)).interval == wilson_interval(20, 60)
    low, high = wilson_interval(20, 60)
    eight_times = rate_over_levels(results * 8, list(range(60)) * 8)
    assert eight_times.interval == pytest.approx((low, high), abs=0.01) and eight_times.levels == 60
    won = rate_over_levels([1.0] * 64, list(range(16)) * 4)
    assert won.interval == pytest.approx(wilson_interval(16, 16), abs=0.03)


def test_students_t_counts_the_levels() -> None:
    """Five levels of 20 results each, worked out by hand."""
    shares = (0.1, 0.3, 0.4, 0.5, 0.7)
    results = [float(number < 20 * share) for share in shares for number in range(20)]
    between = 20**2 * sum((share - 0.4) ** 2 for share in shares) * 5 / 4
    prior = 20**2 * 0.25 * (0.4**2 + 0.6**2)
    effect = (between + prior) / (100 * 100 * 0.4 * 0.6 / 99)
    worth = 100 / effect * (student.ppf(0.975, 99) / student.ppf(0.975, 4)) ** 2
    rate = rate_over_levels(results, [number // 20 for number in range(100)])
    assert rate.interval == pytest.approx(wilson_interval(0.4 * worth, worth))


def test_one_level_has_no_interval() -> None:
    one = rate_over_levels([0.0, 1.0, 1.0, 1.0], ["a"] * 4)
    assert (one.mean, one.levels, one.interval) == (0.75, 1, None)
    assert mean_interval([1.0, 3.0], ["a", "a"]) == (2.0, -np.inf, np.inf)
    with pytest.raises(ValueError, match="no results"):
        rate_over_levels([], [])


def test_a_mean_over_levels_is_the_one_of_their_means_where_all_are_as_large() -> None:
    values = np.random.default_rng(0).normal(size=(7, 4))
    levels = np.repeat(np.arange(7), 4).tolist()
    assert mean_interval(values.ravel().tolist(), levels) == pytest.approx(mean_interval(values.mean(1).tolist()))


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
