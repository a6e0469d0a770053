"""Best-response gaps and the efficiency of bargains, against known equilibria and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.envs.games.dilemmas.rock_paper_scissors import HANDS, PAYOFFS
from rllib_lmgame.envs.games.talk.negotiation.contexts import Context
from rllib_lmgame.envs.support.bargaining import (
    frontier,
    is_pareto_efficient,
    joint_share,
    nash_product,
    nash_share,
    outcome_measures,
)
from rllib_lmgame.envs.support.payoffs import cooperation_rate, social_welfare
from rllib_lmgame.measures.exploitability import best_response_gaps, payoff_arrays

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


PAIRS = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=30)


@given(PAIRS, st.integers(0, 29))
def test_two_players_against_brute_force(possible: list[tuple[int, int]], pick: int) -> None:
    outcome = possible[pick % len(possible)]
    better = [
        (a, b) for a, b in possible if (a > outcome[0] and b >= outcome[1]) or (a >= outcome[0] and b > outcome[1])
    ]
    assert is_pareto_efficient(outcome, possible) == (not better) == (outcome in frontier(possible))
    assert joint_share(outcome, possible) == (
        sum(outcome) / (max(a + b for a, b in possible) or 1) if any(map(any, possible)) else 1
    )
    best = max(a * b for a, b in possible)
    assert nash_share(outcome, possible) == (outcome[0] * outcome[1] / best if best else 1.0)
    assert frontier(possible) == frontier([*possible, *possible])


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=20), st.tuples(*[st.integers(0, 3)] * 3))
def test_three_players_and_a_disagreement(possible: list[tuple[int, ...]], without: tuple[int, ...]) -> None:
    for one in possible:
        beaten = any(all(a >= b for a, b in zip(two, one, strict=True)) and two != one for two in possible)
        assert is_pareto_efficient(one, possible) == (not beaten)
        gains = [max(0, a - b) for a, b in zip(one, without, strict=True)]
        assert nash_product(one, without) == gains[0] * gains[1] * gains[2]


def test_a_published_context_by_hand() -> None:
    """1 book, 2 hats, 3 balls, worth (1, 3, 1) and (2, 1, 2): every way to share them out is looked at."""
    context = Context((1, 2, 3), ((1, 3, 1), (2, 1, 2)))
    outcomes = [
        (book + 3 * hats + balls, 2 * (1 - book) + (2 - hats) + 2 * (3 - balls))
        for book, hats, balls in itertools.product(range(2), range(3), range(4))
    ]
    assert sorted(context.outcomes()) == sorted(outcomes)
    assert outcome_measures((6, 8), context.outcomes()) == {
        "deal": 1.0,
        "pareto_efficient": 1.0,
        "joint_share": 1.0,
        "nash_share": 1.0,
    }
    poor = outcome_measures((4, 1), context.outcomes())
    assert poor["pareto_efficient"] == 0.0 and poor["joint_share"] == 5 / 14 and poor["nash_share"] == 4 / 48
    assert outcome_measures(None, context.outcomes()) == dict.fromkeys(poor, 0.0)
