"""Best-response gaps against known equilibria and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.envs.games.dilemmas.rock_paper_scissors import HANDS, PAYOFFS
from rllib_lmgame.measures.matrix_games import best_response_gaps, cooperation_rate, payoff_arrays, social_welfare

RPS = payoff_arrays(PAYOFFS, HANDS)


def test_known_gaps() -> None:
    third = [1 / 3] * 3
    assert best_response_gaps(RPS, [third, third]) == pytest.approx((0, 0))
    assert best_response_gaps(RPS, [[1, 0, 0], third]) == pytest.approx((0, 1))  # Paper beats who always shows rock.
    assert best_response_gaps(RPS, [[1, 0, 0], [1, 0, 0]]) == pytest.approx((1, 1))
    dilemma = payoff_arrays({("c", "c"): 3, ("c", "d"): 0, ("d", "c"): 5, ("d", "d"): 1}, "cd")
    assert best_response_gaps(dilemma, [[0, 1], [0, 1]]) == pytest.approx((0, 0))
    assert best_response_gaps(dilemma, [[1, 0], [0.5, 0.5]]) == pytest.approx((1.5, 1.0))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), shape=st.lists(st.integers(1, 3), min_size=2, max_size=3))
def test_gaps_agree_with_sums_over_all_outcomes(seed: int, shape: list[int]) -> None:
    rng = np.random.default_rng(seed)
    payoffs = [rng.normal(size=shape) for _ in shape]
    mixed = [rng.dirichlet(np.ones(n)) for n in shape]

    def value(player: int, profile: list[np.ndarray]) -> float:
        cells = itertools.product(*map(range, shape))
        return sum(
            payoffs[player][cell] * np.prod([p[i] for p, i in zip(profile, cell, strict=True)]) for cell in cells
        )

    for player, gap in enumerate(best_response_gaps(payoffs, mixed)):
        deviations = [
            value(player, [np.eye(n)[action] if i == player else mixed[i] for i, n in enumerate(shape)])
            for action in range(shape[player])
        ]
        assert gap == pytest.approx(max(deviations) - value(player, mixed), abs=1e-12) and gap >= -1e-12


def test_what_is_no_game_or_no_strategy_is_named() -> None:
    with pytest.raises(ValueError, match="strategy of player 1 is no distribution"):
        best_response_gaps(RPS, [[1, 0, 0], [0.5, 0.2, 0.2]])
    with pytest.raises(ValueError, match="pay-offs of player 0 have the shape"):
        best_response_gaps(RPS, [[1, 0], [0.5, 0.5]])


def test_rates_and_welfare() -> None:
    assert cooperation_rate(["c", "d", "c", "c"], "c") == 0.75
    assert social_welfare([3.0, 1.5], 6.0) == 0.75
    with pytest.raises(ValueError, match="no actions"):
        cooperation_rate([], "c")
    with pytest.raises(ValueError, match="positive"):
        social_welfare([0.0, 0.0], 0.0)
