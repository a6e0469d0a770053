"""A league's decisions: snapshots, who leaves, matches, pay-offs; all of it in its state."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.league.league import League
from rllib_lmgame.league.matches import Match, Table, assign_engines, deal_matches
from rllib_lmgame.league.matchmaking import Member
from rllib_lmgame.league.options import LeagueOptions
from rllib_lmgame.league.payoffs import Payoffs
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes

ROLES = {"X": "first", "O": "second"}
THREE = {"a": "x", "b": "y", "c": "y"}


def plans_of(count: int, iteration: int = 0, group_size: int = 1) -> list[EpisodePlan]:
    return plan_episodes(count, run_seed=5, purpose="train", iteration=iteration, group_size=group_size)


def played(league: League, iteration: int, roles: dict[str, str] = ROLES) -> tuple[list[Any], dict[int, Match]]:
    """Results of an iteration, which follow from the seeds alone."""
    plans = plans_of(60, iteration)
    matches, summaries = league.matches(plans, iteration), []
    for plan in plans:
        match = matches[plan.index]
        won = random.Random(plan.seed).random() < 0.5
        seats = [
            SimpleNamespace(trained=seat.trained, outcome="win" if won == seat.trained else "loss")
            for seat in match.assignments(roles).values()
        ]
        summaries.append(SimpleNamespace(index=plan.index, seats=seats))
    return summaries, matches


def run(league: League, iterations: range, shuffle: random.Random | None = None) -> list[tuple[list[str], list[str]]]:
    """Play iterations; snapshots and opponents in each."""
    seen = []
    for iteration in iterations:
        due = league.due(iteration)
        league.decided(iteration, [dataclasses.replace(m, checksum=m.name, files={"w": {"bytes": 3}}) for m in due])
        seen.append(([m.name for m in due], [table.member.name for table in league.tables(iteration)]))
        summaries, matches = played(league, iteration)
        if shuffle:
            shuffle.shuffle(summaries)
        league.record(summaries, matches)
    return seen


def test_a_league_of_twelve_goes_on_from_its_state_as_if_it_had_not_stopped() -> None:
    """Members, pay-offs, snapshots and matchmaking, through JSON; results may come in any order."""
    options = LeagueOptions(snapshot_every=2, max_members=12, opponent_engines=2, matchmaking="pfsp_hard")
    whole, first, second = (League(options, ["player"], 3) for _ in range(3))
    met = run(whole, range(60))
    begun = run(first, range(37), random.Random(1))
    assert len(first.members) == 12
    second.set_state(json.loads(json.dumps(first.state())))
    assert begun + run(second, range(37, 60), random.Random(2)) == met
    assert second.state() == whole.state() and second.numbers() == whole.numbers()
    assert len({name for _, names in met for name in names}) > 12


def test_snapshots_every_k_iterations_and_none_twice() -> None:
    league = League(LeagueOptions(snapshot_every=4), ["a", "b"], 0)
    taken = {}
    for iteration in range(9):
        due = league.due(iteration)
        league.decided(iteration, due)
        taken[iteration] = [member.name for member in due]
        assert league.due(iteration) == []
    assert {i: names for i, names in taken.items() if names} == {i: [f"a-{i}", f"b-{i}"] for i in (0, 4, 8)}


def test_whoever_left_is_forgotten() -> None:
    league = League(LeagueOptions(snapshot_every=1, max_members=2), ["p"], 0)
    left = []
    for iteration in range(4):
        left += league.decided(iteration, league.due(iteration))
        league.payoffs.add("p", f"p-{iteration}", "win")
    assert [member.name for member in left] == ["p-0", "p-1"]
    assert set(league.state()["payoffs"]) == {"p", "p-2", "p-3"} and set(league.state()["payoffs"]["p"]) == {
        "p-2",
        "p-3",
    }


def test_payoffs() -> None:
    payoffs = Payoffs()
    assert payoffs.win_rate("p", "m") == 0.5
    for outcome, games in (("win", 6), ("draw", 2), ("loss", 1)):
        payoffs.add("p", "m", outcome, games)
    assert payoffs.win_rate("p", "m") == (6 + 1 + 0.5) / 10
    payoffs.decay("p", 0.5)
    assert payoffs.record("p", "m") == (3, 1, 0.5) and payoffs.games("p", "m") == 4.5
    payoffs.copy_row("p", "later")
    payoffs.add("p", "m", "loss")
    assert payoffs.record("later", "m") == (3, 1, 0.5)


def test_ratings_follow_from_the_payoffs() -> None:
    """Twice as many wins as losses are 120 points; members are compared by what their policy did at the time."""
    league = League(LeagueOptions(snapshot_every=1), ["p"], 0)
    for iteration in range(2):
        league.decided(iteration, league.due(iteration))
        for outcome, games in (("win", 2000), ("loss", 1000)):
            league.payoffs.add("p", f"p-{iteration}", outcome, games)
    rating = league.numbers()["rating"]
    assert list(rating) == ["p", "p-0", "p-1"]
    assert rating["p"] - rating["p-1"] == pytest.approx(400 * math.log10(2), abs=40)
    assert rating["p"] > rating["p-1"] > rating["p-0"]


@given(
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 80),
    st.sampled_from([0.0, 0.35, 1.0]),
    st.integers(0, 2**20),
)
def test_matches_are_dealt_evenly(
    policies: int, tables: int, group_size: int, groups: int, share: float, seed: int
) -> None:
    """Shares within one group, every seat alike within one, groups together; the order of the plans does not matter."""
    names = [f"p{i}" for i in range(policies)]
    seated = [Table(names[i % policies], Member(f"m{i}", names[0], i)) for i in range(tables)]
    plans = plans_of(groups * group_size, seed, group_size)
    matches = deal_matches(plans, names, seated, LeagueOptions(self_play_share=share), seed)
    assert deal_matches(plans[::-1], names, seated, LeagueOptions(self_play_share=share), seed) == matches
    of_group = {plan.group: matches[plan.index] for plan in plans}
    assert all(matches[plan.index] == of_group[plan.group] for plan in plans)
    dealt = Counter((match.policy, match.member and match.member.name) for match in of_group.values())
    for policy in names:
        own = [table.member.name for table in seated if table.policy == policy]
        for member in [None, *own]:
            wanted = (share if member is None else (1 - share) / len(own)) if own else 1.0
            assert abs(dealt[policy, member] - wanted * groups / policies) < 1
    for kind in dealt:
        seats = Counter(
            match.number % 2
            for match in of_group.values()
            if (match.policy, match.member and match.member.name) == kind
        )
        assert abs(seats[0] - seats[1]) <= 1


def test_a_member_takes_every_other_seat_and_learns_nothing() -> None:
    member = Member("p-3", "p", 3)
    for number in range(3):
        assignments = Match("p", member, number).assignments(THREE)
        assert [agent for agent, seat in assignments.items() if seat.trained] == [list(THREE)[number]]
        assert {seat.weights for seat in assignments.values() if not seat.trained} == {"p-3"}
    assert all(seat.trained and seat.member is None for seat in Match("p", None, 0).assignments(THREE).values())
    assert Match("p", member, 1).assignments({"only": "x"})["only"].trained


@given(
    st.lists(st.sampled_from("abcd"), max_size=4), st.lists(st.sampled_from([None, *"abcdef"]), min_size=4, max_size=4)
)
def test_engines_exchange_as_little_as_can_be(wanted: list[str], held: list[str | None]) -> None:
    assigned = assign_engines(held, wanted)
    assert not Counter(wanted) - Counter(name for name in assigned if name)
    swaps = sum(before != after for before, after in zip(held, assigned, strict=True))
    assert swaps == sum((Counter(wanted) - Counter(name for name in held if name)).values())


@pytest.mark.parametrize("roles", [ROLES, THREE])
def test_only_outcomes_of_who_learns_count(roles: dict[str, str]) -> None:
    """One per game against a member, whatever the seats of others came to, and none of a game that has no outcome."""
    league = League(LeagueOptions(self_play_share=0.5, payoff_decay=1.0), ["p"], 0)
    league.decided(0, league.due(0))
    summaries, matches = played(league, 0, roles=roles)
    against = [summary for summary in summaries if matches[summary.index].member is not None]
    for number, summary in enumerate(against):
        trained = [seat for seat in summary.seats if seat.trained]
        assert len(summary.seats) == len(roles) and len(trained) == 1
        for seat in summary.seats:
            seat.outcome = (("win", "draw", None)[number % 3]) if seat.trained else "loss"
    league.record(summaries, matches)
    assert len(against) == 30 and league.payoffs.record("p", "p-0") == (10, 10, 0)


def test_win_rates_are_told_of_members_that_were_met() -> None:
    league = League(LeagueOptions(snapshot_every=1), ["p"], 0)
    league.decided(0, league.due(0))
    assert league.numbers()["win_rate"] == {"p": {}} and league.numbers()["mean_win_rate"] == {}
    for outcome, games in (("win", 3), ("loss", 1)):
        league.payoffs.add("p", "p-0", outcome, games)
    league.decided(1, league.due(1))
    league.payoffs.add("p", "p-1", "loss", 1)
    league.decided(2, league.due(2))
    numbers = league.numbers()
    assert numbers["size"] == 3
    assert numbers["win_rate"] == {"p": {"p-0": pytest.approx(0.7), "p-1": pytest.approx(0.25)}}
    assert numbers["mean_win_rate"] == {"p": pytest.approx((0.7 + 0.25) / 2)}


def test_a_state_with_a_policy_that_is_gone_is_refused() -> None:
    """Whether there are members of it or not."""
    whole = League(LeagueOptions(snapshot_every=1, opponent_engines=2), ["p", "h"], 3)
    run(whole, range(3))
    other = League(LeagueOptions(), ["p"], 3)
    with pytest.raises(CheckpointError, match=r"do not learn: h$"):
        other.set_state(json.loads(json.dumps(whole.state())))
    assert other.members == [] and other.numbers()["size"] == 0
