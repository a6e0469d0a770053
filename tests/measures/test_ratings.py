"""Ratings: known figures and OpenSpiel's Elo."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rllib_lmgame.measures.ratings import bradley_terry, ratings, win_matrix


@pytest.mark.parametrize(
    ("wins", "known"),
    [
        ([[0, 2], [1, 0]], [119.549873, 0]),
        ([[0, 4, 2], [1, 0, 2], [3, 3, 0]], [146.532068, 0, 146.532068]),
        ([[0, 10, 0], [0, 0, 10], [10, 0, 0]], [0, 0, 0]),
    ],
)
def test_known_ratings(wins: list[list[int]], known: list[float]) -> None:
    found = bradley_terry(np.array(wins, float))
    assert found.mean() == pytest.approx(0, abs=1e-9)
    assert found - found.min() == pytest.approx(known, abs=1e-4)


@settings(max_examples=25)
@given(st.integers(2, 6).flatmap(lambda n: arrays(np.int64, (2, n, n), elements=st.integers(0, 30))))
def test_ratings_are_open_spiels(results: np.ndarray) -> None:
    elo = pytest.importorskip("open_spiel.python.algorithms.elo")
    wins, drawn = (matrix * (1 - np.eye(len(matrix), dtype=np.int64)) for matrix in results)
    draws = np.triu(drawn) + np.triu(drawn).T
    # Their iteration converges slowly where somebody has only lost; the default ends it after 2,000 steps.
    theirs = elo.compute_ratings_from_matrices(wins, draws, max_iterations=1_000_000, convergence_delta=1e-14)
    ours = bradley_terry(wins + draws / 2)
    assert ours - ours.min() == pytest.approx(theirs, abs=1e-3)


def test_all_wins_are_a_finite_rating() -> None:
    found = bradley_terry(np.array([[0, 1e6], [0, 0]]))
    assert found[0] - found[1] == pytest.approx(400 * math.log10((1e6 + 0.01) / 0.01))


def test_ratings_do_not_depend_on_order_names_or_sides() -> None:
    chance = random.Random(0)
    games = [
        [(*pair, chance.choice((0.0, 0.5, 1.0)))]
        for pair in itertools.permutations(("ann", "bob", "cid"), 2)
        for _ in range(9)
    ]
    games.append([("ann", "bob", 1.0), ("ann", "cid", 1.0)])  # One game of three.
    found = ratings(games, ("ann", "bob", "cid"), resamples=200)
    shuffled = [[(b, a, 1 - score) for a, b, score in reversed(game)] for game in games]
    chance.shuffle(shuffled)
    again = ratings(shuffled, ("cid", "ann", "bob"), resamples=200)
    assert again == found and list(again) == ["cid", "ann", "bob"]
    assert all(rating.low <= rating.rating <= rating.high for rating in found.values())
    assert ratings(games, ("ann", "bob", "cid"), resamples=200, seed=1) != found


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """120 tournaments of two players whose true difference is 100 points."""
    chance, held = random.Random(1), 0
    for trial in range(120):
        games = [[("a", "b", float(chance.random() < 1 / (1 + 10**-0.25)))] for _ in range(60)]
        rating = ratings(games, ("a", "b"), resamples=200, seed=trial)["a"]
        held += rating.low <= 50 <= rating.high
    assert 104 <= held <= 120  # 95 % of 120 is 114, its standard deviation 2.4.


def test_four_wins_of_four_are_not_certain() -> None:
    rating = ratings([[("a", "b", 1.0)]] * 4, ("a", "b"))["a"]
    assert rating.rating == rating.high == pytest.approx(200 * math.log10(4.01 / 0.01))
    assert -100 < rating.low < 100
    assert ratings([[("a", "b", 1.0)]] * 400, ("a", "b"))["a"].low > 300


def test_without_games_nothing_is_known() -> None:
    rating = ratings([], ("a", "b"))["a"]
    assert rating.rating == 0 and math.isinf(rating.low) and math.isinf(rating.high)


def test_a_result_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'z', score .*: no result of a, b"):
        win_matrix([[("a", "z", 1.0)]], ("a", "b"))
