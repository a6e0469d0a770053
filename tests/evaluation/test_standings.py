"""Tournaments: who meets whom, and what is counted for whom."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli.tournament import standings_text
from rllib_lmgame.evaluation.tournament.results import GameResult, SeatResult, TournamentDirectory, result_of
from rllib_lmgame.evaluation.tournament.schedule import match_ups, schedule
from rllib_lmgame.evaluation.tournament.standings import RETURN, WINS, has_stakes, is_zero_sum, standings, write_csv
from rllib_lmgame.measures.statistics import mean_interval, wilson_interval
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan

PAYOFFS = {"win": 1.0, "draw": 0.0, "loss": -1.0}


def game(number: int, *seats: tuple[str, str | None], payoffs: tuple[float, ...] = ()) -> GameResult:
    """A game of players and their outcomes; of pay-offs, if they do not follow from those."""
    paid = payoffs or tuple(PAYOFFS.get(str(outcome), 0.0) for _, outcome in seats)
    return GameResult(
        f"tournament-0-0-{number}",
        "own/Game-v0",
        tuple(SeatResult(f"seat_{i}", player, paid[i], outcome, None) for i, (player, outcome) in enumerate(seats)),
    )


def test_wins_draws_losses_points_and_ratings() -> None:
    results = [game(i, ("a", "win"), ("b", "loss")) for i in range(6)]
    results += [game(10 + i, ("b", "draw"), ("a", "draw")) for i in range(2)]
    table = standings("own/Game-v0", results, ["b", "a", "absent"], zero_sum=True)
    first, second, third = table.players
    assert [first.player, second.player, third.player] == ["a", "absent", "b"]  # by rating
    assert (first.wins, first.draws, first.losses, first.seats) == (6, 2, 0, 8)
    assert first.rate == pytest.approx((6 / 8, *wilson_interval(6, 8))) and second.rate is None
    assert first.payoff is not None and first.payoff[0] == pytest.approx(0.75)
    assert table.matrix[0, 2] == pytest.approx(7 / 8) and table.matrix[2, 0] == pytest.approx(1 / 8)
    assert math.isnan(table.matrix[0, 1]) and math.isnan(table.matrix[0, 0])
    assert first.rating is not None and third.rating is not None and first.rating.low > third.rating.high
    assert second.rating is not None and second.rating.rating == 0 and math.isinf(second.rating.high)
    assert json.loads(json.dumps(table.as_json(), allow_nan=False))["players"][1]["player"] == "absent"


def test_by_return_who_wins_much_is_first(tmp_path: Path) -> None:
    """a wins seldom, but much: by return it is the better one, in rank and pay-offs."""
    results = [game(i, ("a", "loss"), ("b", "win"), payoffs=(-1.0, 1.0)) for i in range(6)]
    results += [game(6 + i, ("a", "win"), ("b", "loss"), payoffs=(5.0, -5.0)) for i in range(2)]
    assert has_stakes(results) and not has_stakes(results[:6])
    table = standings("own/Game-v0", results, "ab", zero_sum=True, by=RETURN)
    better, worse = table.players
    assert (better.player, better.rating, better.wins, worse.wins) == ("a", None, 2, 6)
    assert table.matrix[0, 1] == table.returns[0, 1] == 0.5
    assert [player.player for player in standings("own/Game-v0", results, "ab", zero_sum=True).players] == ["b", "a"]
    for by in (WINS, RETURN):
        write_csv(standings("own/Game-v0", results, "ab", zero_sum=True, by=by), tmp_path / f"{by}.csv")
        cells = {row.split(",")[0]: row.split(",")[1:] for row in (tmp_path / f"{by}.csv").read_text().splitlines()}
        assert sorted(cells["a"]) == ["", "0.5"] and sorted(cells["b"]) == ["", "-0.5"]


def test_order_of_games_does_not_matter() -> None:
    chance = random.Random(0)
    ends = [("win", "loss"), ("loss", "win"), ("draw", "draw")]
    results = [game(i, *zip(chance.sample("abc", 2), chance.choice(ends), strict=True)) for i in range(40)]
    table = standings("own/Game-v0", results, "abc", zero_sum=True)
    chance.shuffle(results)
    assert standings("own/Game-v0", results, "abc", zero_sum=True).as_json() == table.as_json()


def test_of_two_who_lose_to_a_third_nobody_is_better() -> None:
    result = game(0, ("a", "win"), ("b", "loss"), ("c", "loss"))
    assert result.comparisons == (("a", "b", 1.0), ("a", "c", 1.0))
    assert game(0, ("a", "win"), ("a", "loss")).comparisons == ()
    assert game(0, ("a", None), ("b", "loss")).comparisons == ()
    assert game(0, ("b", "draw"), ("a", "draw")).comparisons == (("b", "a", 0.5),)


def test_other_games_are_told_by_what_players_get() -> None:
    results = [game(i, ("a", "draw"), ("b", "draw"), payoffs=(3.0, 1.0 + i)) for i in range(4)]
    assert not is_zero_sum(results, None)
    table = standings("own/Game-v0", results, "ab", zero_sum=False)
    first, second = table.players
    assert first.player == "a" and first.payoff == (3, 3, 3) and first.rating is None
    assert second.payoff is not None and second.payoff[0] == 2.5 and second.payoff[1] < 2.5 < second.payoff[2]
    assert table.matrix.tolist()[0][1] == 3 and table.matrix.tolist()[1][0] == 2.5


def test_what_a_zero_sum_game_is() -> None:
    drawn, won = game(0, ("a", "draw"), ("b", "draw")), game(1, ("a", "win"), ("b", "loss"))
    assert not is_zero_sum([], None) and is_zero_sum([], True)
    assert not is_zero_sum([drawn], None) and is_zero_sum([drawn], True) and is_zero_sum([drawn, won], None)
    assert not is_zero_sum([game(0, ("a", None), ("b", None), payoffs=(1.0, -1.0))], None)  # cooperative
    uneven = game(2, ("a", "win"), ("b", "loss"), payoffs=(1.0, 0.0))
    assert not is_zero_sum([won, uneven], None), "one game is enough"


def record(result: GameResult, results: dict[str, float] | None = None) -> dict[str, Any]:
    return {
        "episode_id": result.episode_id,
        "game": result.game,
        "infos": {agent: {"result": value} for agent, value in (results or {}).items()},
        "assignments": {seat.agent_id: {"module_id": seat.player, "player": "random"} for seat in result.seats},
        "trajectories": [
            {"agent_id": seat.agent_id, "return": seat.payoff, "outcome": seat.outcome, "success": seat.success}
            for seat in result.seats
        ],
    }


def test_a_games_own_result_goes_before_returns() -> None:
    """Returns hold penalties for slips."""
    played = game(0, ("a", "win"), ("b", "loss"), payoffs=(0.8, -1.0))
    named = result_of(record(played, {"seat_0": 1.0, "seat_1": -1.0}))
    assert [seat.payoff for seat in named.seats] == [1.0, -1.0]
    assert result_of(record(played, {"seat_0": 1.0})) == played


def test_a_directory_goes_on_and_drops_half_a_line(tmp_path) -> None:
    played = [game(i, ("a", "win"), ("b", "loss")) for i in range(3)]
    directory = TournamentDirectory(tmp_path)
    assert directory.played({"seed": 0}) == {}
    directory.begin({"seed": 0})
    for result in played:
        directory.add(record(result))
    file = tmp_path / "games.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    assert list(TournamentDirectory(tmp_path).played({"seed": 0}).values()) == played[:2]
    directory.add(record(played[2]))
    assert file.read_bytes() == whole
    assert list(directory.played({"seed": 0}).values()) == played


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"seed": 1}', "holds another tournament: seed was 1, now it is 0"),
        ('{"seed": 0, "games_each": 3}', "holds another tournament: --games was 3, now it is None"),
        ("{", "is damaged"),
        (None, r"holds games\.jsonl, but no tournament\.json"),
    ],
)
def test_another_directory_is_refused(content: str | None, words: str, tmp_path) -> None:
    (tmp_path / "games.jsonl").write_text("not a record\n")
    if content is not None:
        (tmp_path / "tournament.json").write_text(content)
    with pytest.raises(ConfigError, match=words):
        TournamentDirectory(tmp_path).played({"seed": 0})


def test_damaged_games_are_named_with_their_line(tmp_path) -> None:
    directory = TournamentDirectory(tmp_path)
    directory.begin({"seed": 0})
    directory.add(record(game(0, ("a", "win"), ("b", "loss"))))
    directory.add({"episode_id": "x"})
    with pytest.raises(ConfigError, match=r"games\.jsonl, line 2: no record of"):
        directory.played({"seed": 0})


def test_two_processes_do_not_play_one_tournament(tmp_path) -> None:
    with TournamentDirectory(tmp_path).held():
        with pytest.raises(ConfigError, match=rf"another process plays the tournament .*process {os.getpid()} on"):
            with TournamentDirectory(tmp_path).held():
                pass
    with TournamentDirectory(tmp_path).held():
        pass


def test_a_game_counts_once_however_many_of_its_seats_a_player_took() -> None:
    """What the seats of one game come to hangs together: four of four seats in each of 10 games are 10 trials."""
    results = [
        GameResult(
            f"tournament-0-0-{i}",
            "own/Game-v0",
            tuple(SeatResult(f"seat_{k}", "ab"[k == 4], float(i % 2), None, bool(i % 2)) for k in range(5)),
        )
        for i in range(10)
    ]
    player = next(p for p in standings("own/Game-v0", results, "ab", zero_sum=False).players if p.player == "a")
    assert player.seats == 40 and player.rate == pytest.approx((0.5, *wilson_interval(5, 10)))
    assert player.payoff == pytest.approx(mean_interval([float(i % 2) for i in range(10)]))
    wins = [game(i, *[("a", "win" if i % 2 else "loss")] * 4, ("b", "loss" if i % 2 else "win")) for i in range(10)]
    player = next(p for p in standings("own/Game-v0", wins, "ab", zero_sum=True).players if p.player == "a")
    assert player.wins == 20 and player.rate == pytest.approx((0.5, *wilson_interval(5, 10)))
    wins = [
        game(i, *[("a", "win")] * 4, ("b", "loss")) if i % 2 else game(i, ("a", "loss"), ("b", "win"))
        for i in range(10)
    ]
    table = standings("own/Game-v0", wins, "ab", zero_sum=True)
    player = next(p for p in table.players if p.player == "a")
    assert (player.wins, player.seats) == (20, 25) and player.rate == pytest.approx((0.5, *wilson_interval(5, 10)))
    row = next(line for line in standings_text(table).splitlines() if line.startswith("a "))
    assert row.split()[6:13] == ["20", "0", "5", "0.500", "0.237", "-", "0.763"]


def test_intervals_of_standings_are_over_levels() -> None:
    """Twelve games on each of four levels, which the first player wins or loses altogether."""
    results = [
        replace(game(i, ("a", "win" if i % 4 else "loss"), ("b", "loss" if i % 4 else "win")), seed=i % 4)
        for i in range(48)
    ]
    few = next(p for p in standings("own/Game-v0", results, "ab", zero_sum=True).players if p.player == "a")
    alone = [replace(result, seed=i) for i, result in enumerate(results)]
    many = next(p for p in standings("own/Game-v0", alone, "ab", zero_sum=True).players if p.player == "a")
    assert few.rate is not None and few.rate[0] == 0.75 and few.rate[1] < 0.3
    assert many.rate == pytest.approx((0.75, *wilson_interval(36, 48)))
    assert few.payoff is not None and few.payoff == pytest.approx(mean_interval([-1.0, 1.0, 1.0, 1.0]))
    assert few.rating is not None and many.rating is not None
    assert few.rating.low < many.rating.low and few.rating.rating == many.rating.rating
    one = standings("own/Game-v0", [replace(result, seed=0) for result in results], "ab", zero_sum=True).players[0]
    assert math.isnan(one.rate[1]) and math.isinf(one.payoff[2])


def test_a_level_that_has_a_name_is_one_level_whatever_the_seed() -> None:
    record = {
        "episode_id": "e",
        "game": "own/Game-v0",
        "seed": 5,
        "infos": {"x": {"success": True}},
        "steps": [{"infos": {"x": {"level": "0123456789abcdef"}}}],
        "assignments": {"x": {"module_id": "a"}},
        "trajectories": [{"agent_id": "x", "return": 1.0, "outcome": None, "success": True}],
    }
    result = result_of(record)
    assert result.played_on == result_of(record | {"seed": 6}).played_on == "own/Game-v0 0123456789abcdef"
    assert result_of(record | {"steps": []}).played_on == "own/Game-v0 5"


def planned(names: str, seats: int, games: int, seed: int = 0) -> list[EpisodePlan]:
    table = [f"seat_{i}" for i in range(seats)]
    return schedule([table], {name: AgentAssignment(name, "random") for name in names}, games, seed)


def order(plan: EpisodePlan) -> tuple[str, ...]:
    return tuple(assignment.module_id for assignment in plan.assignments.values())


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


def test_match_ups_are_seated_apart() -> None:
    """The orders in which the rounds of one come say nothing of those of another."""
    seated: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for plan in planned("abcdef", 3, 18):
        who = order(plan)
        seated[plan.episode_id.rsplit("-", 1)[0]].append(tuple(map(sorted(who).index, who)))
    assert len(seated) == 20 and len(set(map(tuple, seated.values()))) > 1
