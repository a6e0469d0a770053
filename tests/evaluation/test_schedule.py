"""Who meets whom: balanced, paired by level, the same for the same seed."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import pytest

from rllib_lmgame.evaluation.tournament.schedule import match_ups, schedule, seatings
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment


def planned(names: str, seats: int, games: int, seed: int = 0) -> list[EpisodePlan]:
    table = [f"seat_{i}" for i in range(seats)]
    return schedule([table], {name: SeatAssignment(name, "random") for name in names}, games, seed)


def order(plan: EpisodePlan) -> tuple[str, ...]:
    return tuple(assignment.module_id for assignment in plan.line_up.values())


@pytest.mark.parametrize(
    ("names", "seats", "games"), [("abcd", 2, 6), ("abcd", 3, 12), ("abc", 1, 4), ("abcde", 4, 24)]
)
def test_every_order_of_players_comes_equally_often(names: str, seats: int, games: int) -> None:
    orders = Counter(map(order, planned(names, seats, games)))
    assert set(orders) == set(itertools.permutations(names, seats))
    assert len(set(orders.values())) == 1


@pytest.mark.parametrize(("names", "seats"), [("ab", 2), ("abcdef", 5), ("ab", 5), ("abc", 9), ("abcdefghij", 9)])
def test_every_player_takes_every_seat_equally_often(names: str, seats: int) -> None:
    """Of each match-up, also where not all orders can be played, or there are more seats than players."""
    games = planned(names, seats, 2 * seats + 1)
    for _, group in itertools.groupby(
        sorted(games, key=lambda p: p.episode_id.rsplit("-", 1)), lambda p: p.episode_id.rsplit("-", 1)[0]
    ):
        orders = list(map(order, group))
        assert len(orders) == 3 * seats  # Filled up to whole rounds.
        counts = [Counter(who[seat] for who in orders) for seat in range(seats)]
        assert all(count == counts[0] for count in counts)
    assert len({plan.episode_id for plan in games}) == len(games)
    assert [plan.index for plan in games] == list(range(len(games)))


def test_match_ups_of_few_players_seat_all_of_them() -> None:
    assert match_ups("ab", 3) == [("a", "a", "b"), ("a", "b", "b")]
    assert match_ups("abc", 2) == [("a", "b"), ("a", "c"), ("b", "c")]


def test_match_ups_play_the_same_levels_from_both_sides() -> None:
    games = planned("abc", 2, 4)
    levels = Counter(plan.seed for plan in games)
    assert len(levels) == 2 and set(levels.values()) == {6}
    for seed in levels:
        assert Counter(order(plan) for plan in games if plan.seed == seed) == Counter(itertools.permutations("abc", 2))
    assert {plan.group for plan in games} == {"0-0", "0-1"}
    assert [plan.seed for plan in games] == sorted((plan.seed for plan in games), key=[*levels].index)  # round by round


def test_orders_follow_from_the_seed() -> None:
    assert seatings("abcd", 9, 5) == seatings("abcd", 9, 5) != seatings("abcd", 9, 6)
    assert planned("abcd", 3, 6) == planned("abcd", 3, 6) != planned("abcd", 3, 6, seed=1)


def test_match_ups_are_seated_apart() -> None:
    """The orders in which the rounds of one come say nothing of those of another."""
    seated: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for plan in planned("abcdef", 3, 18):
        who = order(plan)
        seated[plan.episode_id.rsplit("-", 1)[0]].append(tuple(map(sorted(who).index, who)))
    assert len(seated) == 20 and len(set(map(tuple, seated.values()))) > 1
