"""Welfare and the efficiency of bargains, against brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.lists(st.tuples(*[st.integers(-1, 4)] * 3), min_size=1, max_size=20))
def test_three_players(possible: list[tuple[int, ...]]) -> None:
    for one in possible:
        beaten = any(all(a >= b for a, b in zip(two, one, strict=True)) and two != one for two in possible)
        assert is_pareto_efficient(one, possible) == (not beaten)
        gains = [max(0, value) for value in one]
        assert nash_product(one) == gains[0] * gains[1] * gains[2]


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
