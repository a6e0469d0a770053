"""A league's decisions: snapshots, who leaves, matches, pay-offs; all of it in its state. Exploiters: whom they meet,
when they are done, and what is known of what they leave behind.
"""

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

from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.trust import Gate
from rllib_lmgame.league.league import League
from rllib_lmgame.league.matches import Match, Table, assign_engines, deal_matches
from rllib_lmgame.league.matchmaking import Latest, Standing, draw_member, drawn, exploited_by
from rllib_lmgame.league.members import Member, leaving
from rllib_lmgame.league.options import LeagueOptions
from rllib_lmgame.league.payoffs import Payoffs
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes

ROLES = {"X": "first", "O": "second"}
THREE = {"a": "x", "b": "y", "c": "y"}


def plans_of(count: int, iteration: int = 0, group_size: int = 1) -> list[EpisodePlan]:
    return plan_episodes(count, run_seed=5, purpose="train", iteration=iteration, group_size=group_size)


def played(
    league: League, iteration: int, strength: float = 0.8, roles: dict[str, str] = ROLES
) -> tuple[list[Any], dict[int, Match]]:
    """Results of an iteration, which follow from the seeds alone; an exploiter wins so many of its games."""
    plans = plans_of(60, iteration)
    matches, summaries = league.matches(plans, iteration), []
    for plan in plans:
        match = matches[plan.index]
        won = random.Random(plan.seed).random() < (strength if match.policy == "h" else 0.5)
        seats = [
            SimpleNamespace(trained=seat.trained, outcome="win" if won == seat.trained else "loss")
            for seat in match.assignments(roles).values()
        ]
        summaries.append(SimpleNamespace(index=plan.index, seats=seats))
    return summaries, matches


def run(
    league: League, iterations: range, shuffle: random.Random | None = None, strength: float = 0.8
) -> list[tuple[list[str], list[str]]]:
    """Play iterations; snapshots and opponents in each."""
    seen = []
    for iteration in iterations:
        due = league.due(iteration)
        league.decided(iteration, [dataclasses.replace(m, checksum=m.name, files=(("w", 3, "x"),)) for m in due])
        seen.append(([m.name for m in due], [table.member.name for table in league.tables(iteration)]))
        summaries, matches = played(league, iteration, strength)
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


def test_a_snapshot_once_the_league_is_beaten() -> None:
    options = LeagueOptions(snapshot_every=None, snapshot_win_rate=0.6, snapshot_min_games=20)
    league = League(options, ["p"], 0)
    league.decided(0, league.due(0))
    league.payoffs.add("p", "p-0", "win", 19)
    assert not league.due(1)
    league.payoffs.add("p", "p-0", "loss", 1)
    assert [member.name for member in league.due(2)] == ["p-2"]
    league.decided(2, league.due(2))
    assert not league.due(3)  # the new member has not been met
    league.payoffs.add("p", "p-2", "draw", 40)
    assert [member.name for member in league.due(4)] == ["p-4"]  # (.93 + .5) / 2


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["oldest", "most_beaten"]), st.randoms())
def test_no_more_members_than_there_may_be(count: int, most: int, rule: str, chance: random.Random) -> None:
    members = [Member(f"m{i}", "p", i) for i in range(count)]
    beaten = {member.name: chance.choice([0.2, 0.5, 0.9]) for member in members}
    gone = leaving(members, most, rule, lambda member: beaten[member.name])
    assert len(gone) == max(0, count - most) and members[-1] not in gone
    stay = [member for member in members[:-1] if member not in gone]
    if rule == "oldest":
        assert gone == members[: len(gone)]
    else:
        assert min((beaten[m.name] for m in gone), default=1.0) >= max((beaten[m.name] for m in stay), default=0.0)


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


def test_further_rounds_of_an_iteration_are_dealt_apart() -> None:
    league = League(LeagueOptions(snapshot_every=1, self_play_share=0.5, forgotten=None), ["p"], 1)
    run(league, range(2))
    (plan,) = plans_of(1, 2)
    league.decided(2, [dataclasses.replace(m, checksum=m.name) for m in league.due(2)])
    rounds = [next(iter(league.matches([dataclasses.replace(plan, index=n)], 2).values())) for n in range(60, 140)]
    against = [match for match in rounds if match.opponent is not None]
    assert 20 <= len(against) <= 60
    assert {match.number % 2 for match in against} == {0, 1}


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


def test_what_is_read_ahead_is_what_is_needed() -> None:
    """The tables of the next iteration, also where a snapshot is due before it and a member leaves for it."""
    league = League(LeagueOptions(snapshot_every=1, max_members=3, matchmaking=Latest()), ["p"], 0)
    for iteration in range(6):
        league.decided(iteration, league.due(iteration))
        league.record(*played(league, iteration))
        ahead = [table.member.name for table in league.next_tables(iteration + 1)]
        before = league.state()
        assert [m.name for m in league.due(iteration + 1)] == [f"p-{iteration + 1}"] == ahead[:1]
        assert league.state() == before


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


POLICIES = ["p", "h"]


def options(**exploiter: Any) -> LeagueOptions:
    return LeagueOptions(
        snapshot_every=4, max_members=6, opponent_engines=2, exploiters={"h": {"of": "p", **exploiter}}
    )


def test_an_exploiter_is_done_when_it_wins_often_enough() -> None:
    """30 games each iteration against at least 64: after the third; the policy's own snapshots go on."""
    league = League(options(win_rate=0.7, reset_every=None), POLICIES, 0)
    taken = [names for names, _ in run(league, range(12))]
    snapshots = sorted((name, i) for i, names in enumerate(taken) for name in names)
    assert snapshots == [("h-3", 3), ("h-6", 6), ("h-9", 9), ("p-0", 0), ("p-4", 4), ("p-8", 8)]
    numbers = league.numbers()["exploiters"]["h"]
    assert (numbers["iterations"], numbers["resets"]) == (3, 3) and numbers["win_rate"] > 0.7


def test_an_exploiter_that_does_not_win_is_done_in_the_end() -> None:
    league = League(options(win_rate=0.7, reset_every=5), POLICIES, 0)
    taken = [names for names, _ in run(league, range(12), strength=0.4)]
    assert [i for i, names in enumerate(taken) if any(name.startswith("h") for name in names)] == [5, 10]


@given(st.integers(1, 60), st.integers(1, 3), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 2**20))
def test_who_meets_whom(groups: int, group_size: int, past_share: float, seed: int) -> None:
    """As many matches for everybody; an exploiter in one seat, every seat alike, nobody else learns there."""
    league = League(options(past_share=past_share), POLICIES, seed)
    league.decided(0, league.due(0))
    league.decided(1, [Member("h-1", "h", 1)])
    plans = plans_of(groups * group_size, 1, group_size)
    matches = league.matches(plans, 1)
    assert matches == league.matches(plans[::-1], 1)
    of_group = {plan.group: matches[plan.index] for plan in plans}
    mine = [match for match in of_group.values() if match.policy == "h"]
    assert abs(len(mine) - groups / 2) < 2
    past = [match for match in mine if match.member is not None]
    assert {match.opponent for match in past} <= {"p-0"}
    assert {match.opponent for match in mine if match.member is None} <= {"p"}
    assert abs(len(past) - past_share * groups / 2) < 1
    for match in mine:
        assignments = match.assignments(ROLES)
        assert sorted((s.weights, s.trained) for s in assignments.values()) == [
            ("h", True),
            (str(match.opponent), False),
        ]
    for opponent in ("p", "p-0"):
        seats = Counter(match.number % 2 for match in mine if match.opponent == opponent)
        assert abs(seats[0] - seats[1]) <= 1
    for match in of_group.values():
        if match.policy == "p":
            assert match.against is None
            assert {seat.module_id for seat in match.assignments(ROLES).values() if seat.trained} == {"p"}


def test_alone_an_exploiter_learns_from_every_seat() -> None:
    assert Match("h", None, 1, "p").assignments({"only": "x"})["only"].trained


def test_what_an_exploiter_did_is_what_was_done_to_its_policy() -> None:
    payoffs = Payoffs()
    for outcome, games in (("win", 8), ("draw", 1), ("loss", 3)):
        payoffs.add("h", "p", outcome, games)
    payoffs.add("h", "p-0", "win", 2)
    payoffs.add("p", "p-0", "loss", 1)
    payoffs.retire("h", "p", "h-5")
    assert payoffs.record("p", "h-5") == (3, 1, 8)
    assert payoffs.games("h", "p") == payoffs.games("h", "p-0") == payoffs.games("h-5", "p") == 0
    assert payoffs.record("h-5", "p-0") == (2, 0, 0) and payoffs.record("p", "p-0") == (0, 0, 1)
    payoffs.retire("h", "p", "h-6")  # has not played yet
    assert payoffs.games("p", "h-6") == 0
    assert payoffs.wins(["p", "h", "p-0", "h-5", "h-6"]).sum() == 15


def standings_of(rates: dict[str, float]) -> list[Standing]:
    return [Standing(Member(name, name[0], i), rate, 10.0) for i, (name, rate) in enumerate(rates.items())]


@pytest.mark.parametrize(
    ("rates", "names"),
    [
        ({"p-0": 0.9, "h-5": 0.2, "p-9": 0.8, "h-9": 0.6}, ["h-5", "h-9"]),
        ({"p-0": 0.1, "h-5": 0.3}, []),
        ({"p-0": 0.1}, []),
    ],
)
def test_past_exploiters_that_win(rates: dict[str, float], names: list[str]) -> None:
    assert [standing.member.name for standing in exploited_by(standings_of(rates), options())] == names


def test_exploiters_are_no_forgotten_members() -> None:
    """That one of them is beaten less often than others does not bring it back, unless it exploits."""
    league = options().model_copy(update={"matchmaking": Latest()})
    standings = standings_of({"h-1": 0.5, "p-4": 0.9, "h-6": 0.6, "p-8": 0.8})
    assert not exploited_by(standings, league)
    met = {
        draw_member(standings, league, lambda purpose, i=i: drawn(i, purpose)).name  # type: ignore[misc]
        for i in range(200)
    }
    assert met == {"p-8"}


def test_past_versions_are_met_that_are_as_strong_as_the_exploiter() -> None:
    """By x(1 - x), whatever matchmaking says; within 4 standard deviations."""
    section = options(past_share=1.0).model_copy(update={"matchmaking": Latest(), "opponent_engines": 100})
    league = League(section, POLICIES, 5)
    wins = {"p-0": 990.0, "p-1": 500.0, "p-2": 800.0}
    for number, (name, won) in enumerate(wins.items()):
        league.decided(number, [Member(name, "p", number)])
        for outcome, games in (("win", won), ("loss", 1000 - won)):
            league.payoffs.add("h", name, outcome, games)
    tables = [table for iteration in range(200) for table in league.tables(iteration) if table.policy == "h"]
    met, draws = Counter(table.member.name for table in tables), len(tables)
    weights = {standing.member.name: standing.win_rate * (1 - standing.win_rate) for standing in league.standings("h")}
    assert draws == 10_000 and set(weights) == set(wins)
    for name, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(met[name] - draws * share) <= 4 * math.sqrt(draws * share * (1 - share))


@pytest.mark.parametrize(("past_share", "seated"), [(0.0, ["p"]), (0.5, ["p", "h"])])
def test_who_meets_no_members_holds_no_engine(past_share: float, seated: list[str]) -> None:
    league = League(options(past_share=past_share).model_copy(update={"opponent_engines": 4}), POLICIES, 0)
    league.decided(0, league.due(0))
    assert [table.policy for table in league.tables(1)] == (seated * 4)[:4]


def test_who_leaves_is_not_told_by_what_exploiters_beat() -> None:
    """The most beaten member is that which policies beat that are none."""
    section = options().model_copy(update={"max_members": 2, "leaves": "most_beaten"})
    league = League(section, POLICIES, 0)
    league.decided(0, [Member("p-0", "p", 0), Member("p-1", "p", 0)])
    for policy, outcomes in (("p", ("loss", "draw")), ("h", ("win", "loss"))):
        for member, outcome in zip(("p-0", "p-1"), outcomes, strict=True):
            league.payoffs.add(policy, member, outcome, 50)
    assert [member.name for member in league.decided(1, [Member("p-2", "p", 1)])] == ["p-1"]


def test_past_exploiters_come_before_forgotten_members() -> None:
    """By (1 - x)^2 in the share of forgotten members, .15 of .65; within 4 standard deviations."""
    league = options().model_copy(update={"matchmaking": Latest()})
    standings, draws = standings_of({"p-0": 0.1, "h-5": 0.2, "h-9": 0.6, "p-10": 0.5}), 20_000
    met = Counter(
        draw_member(standings, league, lambda purpose, i=i: drawn(i, purpose)).name  # type: ignore[misc]
        for i in range(draws)
    )
    assert set(met) == {"h-5", "h-9", "p-10"}
    for name, share in (("h-5", 0.15 / 0.65 * 0.8), ("h-9", 0.15 / 0.65 * 0.2)):
        assert abs(met[name] - draws * share) <= 4 * math.sqrt(draws * share * (1 - share))


def test_a_league_with_an_exploiter_goes_on_from_its_state_as_if_it_had_not_stopped() -> None:
    """Right after a reset, and between two; through JSON."""
    section = options(win_rate=0.75, reset_every=7, past_share=0.4)
    whole = League(section, POLICIES, 3)
    seen = run(whole, range(40))
    assert sum(name.startswith("h") for names, _ in seen for name in names) > 5
    assert len(whole.members) == 6 and {member.policy for member in whole.members} == {"p", "h"}
    for stop in (next(i for i, (names, _) in enumerate(seen) if "h" in "".join(names)) + 1, 23):
        first, second = (League(section, POLICIES, 3) for _ in range(2))
        begun = run(first, range(stop))
        second.set_state(json.loads(json.dumps(first.state())))
        assert begun + run(second, range(stop, 40)) == seen
        assert second.state() == whole.state() and second.numbers() == whole.numbers()


def test_a_state_with_a_policy_that_is_gone_is_refused() -> None:
    """Whether there are members of it or not; who is no exploiter any more, and learns, is welcome."""
    whole = League(options(win_rate=0.75, reset_every=7), POLICIES, 3)
    for iterations in (range(2), range(2, 20)):
        run(whole, iterations)
        state = json.loads(json.dumps(whole.state()))
        other = League(LeagueOptions(), ["p"], 3)
        with pytest.raises(CheckpointError, match=r"do not learn: h$"):
            other.set_state(state)
        assert other.members == [] and other.numbers()["size"] == 0
        plain = League(LeagueOptions(), POLICIES, 3)
        plain.set_state(state)
        assert plain.numbers()["size"] == len(whole.members)
    assert any(member.policy == "h" for member in whole.members)


def test_what_a_strangers_file_may_say_of_exploiters() -> None:
    gate = Gate("a stranger", "leave it")
    gate.options(LeagueOptions, {"exploiters": {"h": {"of": "player", "reset_every": 9, "win_rate": None}}}, "league")
    for entry in ({"of": "package.module:run"}, {"of": "p", "win_rate": "half"}, "p"):
        with pytest.raises(ConfigError, match=r"league\.exploiters\.h"):
            gate.options(LeagueOptions, {"exploiters": {"h": entry}}, "league")
    with pytest.raises(ConfigError, match=r"the name .*h. is not taken"):
        gate.options(LeagueOptions, {"exploiters": {"../h": {"of": "p"}}}, "league")
