"""Efficiency of bargains, against brute force over what is written in the definitions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.envs.games.talk.negotiation.contexts import Context
from rllib_lmgame.measures.efficiency import (
    bargains,
    frontier,
    is_pareto_efficient,
    joint_share,
    nash_product,
    nash_share,
    outcome_measures,
)

PAIRS = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=30)


@settings(max_examples=80, deadline=None)
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


@settings(max_examples=40, deadline=None)
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


def test_many_games() -> None:
    possible = [(10, 0), (6, 6), (0, 10), (5, 5)]
    games = [outcome_measures(outcome, possible) for outcome in ((6, 6), (5, 5), (10, 0), None)]
    found = bargains(games)
    assert (found.games, found.deal_rate, found.pareto_rate) == (4, 0.75, 2 / 3)
    assert found.joint_share == pytest.approx((12 + 10 + 10 + 0) / 48)
    assert found.nash_share == pytest.approx((36 + 25) / 36 / 4)
    assert found.deal_interval[0] < 0.75 < found.deal_interval[1]
    with pytest.raises(ValueError, match="no games"):
        bargains([])
